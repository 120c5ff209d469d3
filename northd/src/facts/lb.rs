//! Load balancers.

use super::Fact;
use crate::addresses::parse_endpoint;
use crate::context::{Ctx, flag, number};
use crate::registers::*;
use ovn_schema::{Str, Uuid, nb};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// A load balancer, parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct Lb {
    /// UUID of the northbound row.
    pub uuid: Uuid,
    /// `protocol`, `tcp` where none is set.
    pub protocol: Str,
    /// The virtual addresses.
    pub vips: Vec<Vip>,
    /// `selection_fields` as `hash_fields` lists them; empty where none are set.
    pub fields: Str,
    /// `options:template`: addresses and ports are variables of the chassis.
    pub template: bool,
    /// `options:distributed`: a backend is used on its own chassis only.
    pub distributed: bool,
    /// `options:skip_snat`.
    pub skip_snat: bool,
    /// `options:reject`.
    pub reject: bool,
    /// `options:use_stateless_nat`.
    pub stateless: bool,
    /// `options:affinity_timeout` in seconds, 0 for none.
    pub affinity: i64,
    /// `options:hairpin_snat_ip`, where it is an IPv4 address.
    pub hairpin: Option<Str>,
    /// The row.
    pub row: Arc<nb::LoadBalancer>,
}

/// A virtual address.
#[derive(Clone, Debug, PartialEq)]
pub struct Vip {
    /// `ADDRESS:PORT` as the row writes it.
    pub text: Str,
    /// The address as a match writes it: plain, or `^VARIABLE` of a template.
    pub address: Str,
    /// The address; none where a variable stands for it.
    pub ip: Option<IpAddr>,
    /// Whether the address is an IPv6 one.
    pub v6: bool,
    /// The port as a match writes it; none: all ports.
    pub port: Option<Str>,
    /// The backends as the row writes them.
    pub backends_text: Str,
    /// The backends.
    pub backends: Vec<Backend>,
    /// Its row of `Load_Balancer_Health_Check`.
    pub health_check: Option<Uuid>,
}

/// A backend of a virtual address.
#[derive(Clone, Debug, PartialEq)]
pub struct Backend {
    /// The address as a match writes it: plain, or `^VARIABLE` of a template.
    pub address: Str,
    /// The port as a match writes it.
    pub port_text: Option<Str>,
    /// The port, 0 where there is none or a variable stands for it.
    pub port: u16,
    /// What `ip_port_mappings` says of it.
    pub mapping: Option<Mapping>,
}

/// The logical port of a backend, and where health checks come from.
#[derive(Clone, Debug, PartialEq)]
pub struct Mapping {
    /// The port.
    pub port: Str,
    /// The address that checks come from.
    pub source: Option<IpAddr>,
    /// The availability zone where the port is, if not here.
    pub zone: Option<Str>,
}

impl Vip {
    /// `ip4` or `ip6`.
    pub fn family(&self) -> &'static str {
        if self.v6 { "ip6" } else { "ip4" }
    }

    /// The register that keeps the address.
    pub fn register(&self) -> &'static str {
        if self.v6 { REG_LB_IPV6 } else { REG_LB_IPV4 }
    }

    /// `ADDRESS:PORT`, or the address alone.
    pub fn endpoint(&self) -> String {
        match &self.port {
            Some(port) if self.v6 => format!("[{}]:{port}", self.address),
            Some(port) => format!("{}:{port}", self.address),
            None => self.address.to_string(),
        }
    }

    /// `reg4 = ADDRESS; reg2[0..15] = PORT; `
    pub fn keep(&self) -> String {
        let mut s = format!("{} = {}; ", self.register(), self.address);
        if let Some(port) = &self.port {
            s.push_str(&format!("{REG_LB_PORT} = {port}; "));
        }
        s
    }

    /// ` && tcp.dst == PORT`, nothing without a port.
    pub fn port_match(&self, protocol: &str) -> String {
        self.port.as_ref().map_or(String::new(), |port| format!(" && {protocol}.dst == {port}"))
    }

    /// ` && reg1[16..23] == 6 && reg1[0..15] == PORT`, what conntrack says of the port; nothing without one.
    pub fn tracked_match(&self, protocol: &Str) -> String {
        let number = protocol_number(protocol);
        let text = |port| format!(" && {REG_CT_PROTO} == {number} && {REG_CT_TP_DST} == {port}");
        self.port.as_ref().map_or(String::new(), text)
    }

    /// The priority of the flow that chooses a backend.
    pub fn priority(&self) -> u16 {
        if self.port.is_some() { 120 } else { 110 }
    }
}

/// Derives [`Fact::Lb`].
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(row) = ctx.nb::<nb::LoadBalancer>(uuid) else { return };
    let options = &row.options;
    let protocol: Str = row.protocol.clone().filter(|p| !p.is_empty()).unwrap_or_else(|| "tcp".into());
    let mut lb = Lb {
        uuid,
        vips: Vec::new(),
        fields: fields(row).into(),
        template: flag(options, "template"),
        distributed: flag(options, "distributed"),
        skip_snat: flag(options, "skip_snat"),
        reject: flag(options, "reject"),
        stateless: flag(options, "use_stateless_nat"),
        affinity: number(options, "affinity_timeout").unwrap_or(0).clamp(0, 65535),
        hairpin: options.get("hairpin_snat_ip").filter(|ip| ip.parse::<std::net::Ipv4Addr>().is_ok()).cloned(),
        row: row.clone(),
        protocol,
    };
    let checks = health_checks(ctx, &lb);
    for (text, backends) in &row.vips {
        let parsed = if lb.template { template(row, text, backends) } else { explicit(text, backends) };
        let mut vip = match parsed {
            Ok(vip) => vip,
            Err(why) => {
                ctx.problem(format!("load balancer {}: {why}; {text} is left out", row.name));
                continue;
            }
        };
        vip.health_check = checks.get(text).copied();
        if vip.health_check.is_some() || lb.distributed {
            mappings(ctx, &lb, &mut vip);
        }
        lb.vips.push(vip);
    }
    ctx.derive(Fact::Lb(Box::new(lb)));
}

/// The health checks by the virtual address that they are for.
fn health_checks(ctx: &mut Ctx<'_, '_>, lb: &Lb) -> BTreeMap<Str, Uuid> {
    let mut checks = BTreeMap::new();
    for h in &lb.row.health_check {
        let Some(check) = ctx.nb::<nb::LoadBalancerHealthCheck>(*h) else { continue };
        if lb.template || &*lb.protocol == "sctp" {
            ctx.problem(match lb.template {
                true => format!("load balancer {}: backends of a template cannot be checked", lb.row.name),
                false => format!(
                    "SCTP load balancers do not currently support health checks. Not creating health checks for load \
                     balancer {}",
                    lb.row.name
                ),
            });
            continue;
        }
        checks.insert(check.vip.clone(), *h);
    }
    checks
}

fn fields(row: &nb::LoadBalancer) -> String {
    let protocol = row.protocol.as_ref().filter(|p| !p.is_empty());
    let field = |f: &Str| match (&**f, protocol) {
        ("tp_src", Some(protocol)) => format!("{protocol}_src"),
        ("tp_dst", Some(protocol)) => format!("{protocol}_dst"),
        (f, _) => f.to_string(),
    };
    row.selection_fields.iter().map(field).collect::<Vec<_>>().join(",")
}

/// A virtual address with its backends as plain addresses.
fn explicit(text: &Str, backends_text: &Str) -> Result<Vip, String> {
    let (ip, port) = parse_endpoint(text).ok_or_else(|| format!("\"{text}\" is no ADDRESS or ADDRESS:PORT"))?;
    let mut backends = Vec::new();
    for b in backends_text.split(',').filter(|b| !b.is_empty()) {
        backends.push(explicit_backend(b, ip, port != 0)?);
    }
    Ok(Vip {
        text: text.clone(),
        address: ip.to_string().into(),
        ip: Some(ip),
        v6: ip.is_ipv6(),
        port: (port != 0).then(|| port.to_string().into()),
        backends_text: backends_text.clone(),
        backends,
        health_check: None,
    })
}

fn explicit_backend(text: &str, vip: IpAddr, with_port: bool) -> Result<Backend, String> {
    let (ip, port) = parse_endpoint(text).ok_or_else(|| format!("\"{text}\" is no ADDRESS or ADDRESS:PORT"))?;
    if ip.is_ipv4() != vip.is_ipv4() {
        return Err(format!("\"{text}\" is of another family than its virtual address"));
    }
    match (with_port, port != 0) {
        (true, false) => Err(format!("\"{text}\" must have a port, as its virtual address has one")),
        (false, true) => Err(format!("\"{text}\" must have no port, as its virtual address has none")),
        _ => Ok(Backend {
            address: ip.to_string().into(),
            port_text: (port != 0).then(|| port.to_string().into()),
            port,
            mapping: None,
        }),
    }
}

/// A virtual address whose parts, and those of its backends, may be variables.
fn template(row: &nb::LoadBalancer, text: &Str, backends_text: &Str) -> Result<Vip, String> {
    let v6 = row.options.get("address-family").is_some_and(|f| &**f != "ipv4");
    let wrong = |t: &str| format!("\"{t}\" must be ^VARIABLE, ^VARIABLE:^VARIABLE or ^VARIABLE:PORT");
    let parts = |t: &str| -> Result<(Str, Option<Str>), String> {
        let parts: Vec<&str> = t.split(':').filter(|p| !p.is_empty()).collect();
        match parts[..] {
            [address] => Ok((address.into(), None)),
            [address, port] => Ok((address.into(), Some(port.into()))),
            _ => Err(wrong(t)),
        }
    };
    let (address, port) = parts(text)?;
    let family = if v6 { IpAddr::from([0u16; 8]) } else { IpAddr::from([0u8; 4]) };
    let mut backends = Vec::new();
    for b in backends_text.split(',').filter(|b| !b.is_empty()) {
        backends.push(if b.starts_with('^') {
            let (address, port_text) = parts(b)?;
            Backend { address, port_text, port: 0, mapping: None }
        } else {
            explicit_backend(b, family, port.is_some())?
        });
    }
    let (text, backends_text) = (text.clone(), backends_text.clone());
    Ok(Vip { text, address, ip: None, v6, port, backends_text, backends, health_check: None })
}

/// Takes over `ip_port_mappings`: `PORT[:SOURCE[:ZONE]]` by backend address.
fn mappings(ctx: &mut Ctx<'_, '_>, lb: &Lb, vip: &mut Vip) {
    let bare = lb.distributed && vip.health_check.is_none();
    for backend in &mut vip.backends {
        let key = if vip.v6 { format!("[{}]", backend.address) } else { backend.address.to_string() };
        let Some(text) = lb.row.ip_port_mappings.get(&*key) else { continue };
        match mapping(text, bare) {
            Ok(mapping) => backend.mapping = Some(mapping),
            Err(why) => {
                let text = format!("load balancer {}: ip_port_mappings of {key}: \"{text}\": {why}", lb.row.name);
                ctx.problem_of(text, &lb.row.ip_port_mappings);
            }
        }
    }
}

/// One mapping; `bare` allows for a port without a source.
fn mapping(text: &str, bare: bool) -> Result<Mapping, String> {
    let Some((port, rest)) = text.split_once(':') else {
        let only = Mapping { port: text.into(), source: None, zone: None };
        return if bare && !text.is_empty() { Ok(only) } else { Err("must be PORT:SOURCE".into()) };
    };
    let (source, zone) = match rest.strip_prefix('[') {
        Some(rest) => {
            let (source, after) = rest.split_once(']').ok_or("the bracket is not closed")?;
            (source, after.strip_prefix(':'))
        }
        None => rest.split_once(':').map_or((rest, None), |(source, zone)| (source, Some(zone))),
    };
    if zone == Some("") {
        return Err("Empty AZ name specified".into());
    }
    let source = source.parse().map_err(|_| format!("Invalid svc mon src IP {source}: bad IP address \"{source}\""))?;
    Ok(Mapping { port: port.into(), source: Some(source), zone: zone.map(Str::from) })
}

/// The protocol as a match writes it.
pub fn protocol_number(protocol: &Str) -> u8 {
    match &**protocol {
        "udp" => 17,
        "sctp" => 132,
        _ => 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_name_port_source_and_zone() {
        let all = |t| mapping(t, false).map(|m| (m.port.to_string(), m.source.map(|s| s.to_string()), m.zone));
        assert_eq!(all("p:10.0.0.1"), Ok(("p".into(), Some("10.0.0.1".into()), None)));
        assert_eq!(all("p:[fd00::1]:az2"), Ok(("p".into(), Some("fd00::1".into()), Some("az2".into()))));
        assert_eq!(all("p:10.0.0.1:az2"), Ok(("p".into(), Some("10.0.0.1".into()), Some("az2".into()))));
        assert!(all("p").is_err() && all("p:").is_err() && all("p:10.0.0.1:").is_err() && all("p:[fd00::1").is_err());
        assert!(mapping("p", true).is_ok() && mapping("", true).is_err());
    }

    #[test]
    fn one_bad_backend_takes_its_address_out() {
        assert_eq!(explicit(&"1.1.1.1:80".into(), &"2.2.2.2:80,3.3.3.3:90".into()).unwrap().backends.len(), 2);
        assert!(explicit(&"1.1.1.1:80".into(), &"2.2.2.2".into()).is_err());
        assert!(explicit(&"1.1.1.1".into(), &"2.2.2.2:80".into()).is_err());
        assert!(explicit(&"1.1.1.1:80".into(), &"[fd00::1]:80".into()).is_err());
    }
}
