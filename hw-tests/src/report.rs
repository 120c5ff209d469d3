//! What people see at the end: a table on the terminal and a page to look at.

mod connections;

use crate::agent::Arrivals;
use crate::scenario::{Check, Failover, outage};
use std::fmt::Write;

/// The table for the terminal.
pub fn table(checks: &[Check]) -> String {
    let width = checks.iter().map(|c| c.name.chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for c in checks {
        let mark = if c.held { "ok    " } else { "FAILED" };
        let pad = " ".repeat(width - c.name.chars().count());
        let _ = writeln!(out, "{mark}  {}{pad}  {}", c.name, c.detail);
    }
    let held = checks.iter().filter(|c| c.held).count();
    let _ = writeln!(out, "{held} passed, {} failed", checks.len() - held);
    out
}

fn escape(s: &str) -> String {
    s.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#222}\
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}table{border-collapse:collapse;width:100%}\
td{padding:.3em .6em;border-bottom:1px solid #ddd;vertical-align:top}.ok{color:#17803d;font-weight:600}\
.no{color:#b91c1c;font-weight:600}svg{width:100%;height:auto}text{font:13px system-ui,sans-serif;fill:#222}\
.small{font-size:11px;fill:#555}.box{fill:#f3f4f6;stroke:#6b7280}.active{fill:#dcfce7;stroke:#17803d;stroke-width:2}\
.wire{stroke:#6b7280;stroke-width:2;fill:none}.gap{fill:#fecaca}.tick{stroke:#2563eb;stroke-width:1}.mark{stroke:#b91c1c;stroke-dasharray:4 3}\
.fine{fill:#17803d}.bad{fill:#b91c1c;font-weight:600}.grid{stroke:#ddd}.lag0{fill:#2563eb}.lag1{fill:#c2410c}";

/// What a page shows.
#[derive(Debug)]
pub struct Page<'a> {
    /// Its heading.
    pub title: &'a str,
    /// Who serves now.
    pub served: String,
    /// The drawing of the network.
    pub topology: String,
    /// A failover: what was measured, whose dataplane was killed, and what its outbound and inbound traffic was.
    pub failover: Option<(&'a Failover, &'a str, [&'a str; 2])>,
    /// The checks.
    pub checks: &'a [Check],
}

impl Page<'_> {
    /// A self-contained page: the topology, who is active, the timelines of the failover, every check.
    pub fn html(&self) -> String {
        let held = self.checks.iter().filter(|c| c.held).count();
        let title = escape(self.title);
        let mut out = format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Isthmus: {title}</title><style>{STYLE}</style>\
             <h1>Isthmus: {title}</h1><p>{held} of {} checks held. {}</p><h2>The network</h2>{}",
            self.checks.len(),
            escape(&self.served),
            self.topology
        );
        if let Some((f, victim, ways)) = self.failover {
            out += "<h2>Failover and failback</h2><p>Each blue tick is a datagram that arrived; one was sent every 5 ms. The \
                    gateway's dataplane was killed at the first mark and started again at the second.</p>";
            for (way, arrivals) in ways.iter().zip([&f.outbound, &f.inbound]) {
                out += &timeline(way, arrivals, f, victim);
            }
            if !f.held.is_empty() {
                out += &connections::section(f, victim);
            }
        }
        out += "<h2>Checks</h2><table>";
        for c in self.checks {
            let (class, word) = if c.held { ("ok", "ok") } else { ("no", "failed") };
            let _ = write!(out, "<tr><td class=\"{class}\">{word}<td>{}<td>{}", escape(&c.name), escape(&c.detail));
        }
        out += "</table></html>\n";
        out
    }
}

/// The page of the gateway scenario.
pub fn gateway_page(checks: &[Check], failover: Option<&Failover>, active: &str) -> String {
    let ways = ["outbound: machine → external host (SNAT)", "inbound: external host → machine (floating IP)"];
    Page {
        title: "a logical network reaches a physical one",
        served: format!("The gateway port is served by {active}."),
        topology: topology(active),
        failover: failover.map(|f| (f, "gw1", ways)),
        checks,
    }
    .html()
}

/// The page of the joined zones; `active` serve their ports on the transit switch.
pub fn zones_page(checks: &[Check], failover: Option<&Failover>, active: &[String]) -> String {
    let ways = ["vm1 in zone az1 → vm2 in zone az2", "vm2 in zone az2 → vm1 in zone az1"];
    Page {
        title: "two zones are one network",
        served: format!("The ports on the transit switch are served by {}.", active.join(" and ")),
        topology: zones(active),
        failover: failover.map(|f| (f, "gw2a", ways)),
        checks,
    }
    .html()
}

/// A box of a drawing, with a name and a note; the active one stands out.
fn draw(s: &mut String, (x, y, w): (i32, i32, i32), name: &str, note: &str, active: bool) {
    let class = if active { "active" } else { "box" };
    let _ = write!(
        s,
        "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"44\" rx=\"6\"/><text x=\"{}\" y=\"{}\">{name}</text>\
         <text class=\"small\" x=\"{}\" y=\"{}\">{note}</text>",
        x + 10,
        y + 19,
        x + 10,
        y + 35
    );
}

/// The drawing of two zones: in each a machine, a hypervisor and two gateways; `active` serve now.
fn zones(active: &[String]) -> String {
    let mut s = String::from("<svg viewBox=\"0 0 1000 264\" role=\"img\" aria-label=\"topology\">");
    for (n, left) in [(1, 10), (2, 510)] {
        let is = |gateway: &str| active.iter().any(|a| a == gateway);
        let (hv, a, b) = (format!("hv{n}"), format!("gw{n}a"), format!("gw{n}b"));
        let _ = write!(s, "<text class=\"small\" x=\"{left}\" y=\"14\">zone az{n}</text>");
        draw(&mut s, (left, 24, 150), &format!("central{n}"), "northd, interconnect", false);
        draw(&mut s, (left + 200, 24, 120), &format!("vm{n}"), &format!("10.{n}.0.11"), false);
        draw(&mut s, (left + 200, 110, 120), &hv, "hypervisor", false);
        draw(&mut s, (left, 110, 140), &a, "gateway, priority 20", is(&a));
        draw(&mut s, (left + 340, 110, 140), &b, "gateway, priority 10", is(&b));
        let _ = write!(s, "<path class=\"wire\" d=\"M{0} 68V110\"/>", left + 260);
        for x in [left + 70, left + 260, left + 410] {
            let _ = write!(s, "<path class=\"wire\" d=\"M{x} 154V190\"/>");
        }
    }
    s += "<path class=\"wire\" d=\"M10 190H990\"/><text class=\"small\" x=\"10\" y=\"206\">underlay: Geneve with BFD</text>";
    draw(&mut s, (400, 214, 210), "ts1", "transit switch 169.254.100.0/24", false);
    s + "</svg>"
}

fn topology(active: &str) -> String {
    let mut s = String::from("<svg viewBox=\"0 0 1000 330\" role=\"img\" aria-label=\"topology\">");
    let mut draw = |x, y, w, name: &str, note: &str| draw(&mut s, (x, y, w), name, note, name == active);
    draw(20, 10, 120, "vm1", "web 10.0.1.11");
    draw(160, 10, 120, "vm2", "db 10.0.2.12");
    draw(320, 10, 120, "vm3", "web 10.0.1.13");
    draw(80, 100, 140, "hv1", "hypervisor");
    draw(310, 100, 140, "hv2", "hypervisor");
    draw(530, 100, 140, "gw1", "gateway, priority 20");
    draw(730, 100, 140, "gw2", "gateway, priority 10");
    draw(430, 270, 150, "tor", "physical switch");
    draw(680, 270, 190, "external host", "VLAN 100, 172.16.0.254");
    for (x1, y1, x2, y2) in [(80, 54, 130, 100), (220, 54, 170, 100), (380, 54, 380, 100), (580, 292, 680, 292)] {
        let _ = write!(s, "<path class=\"wire\" d=\"M{x1} {y1}L{x2} {y2}\"/>");
    }
    s += "<path class=\"wire\" d=\"M60 180H930\"/><text class=\"small\" x=\"850\" y=\"196\">underlay: Geneve with BFD</text>";
    for x in [130, 360, 580, 780] {
        let _ = write!(s, "<path class=\"wire\" d=\"M{x} 144V180\"/>");
    }
    for x in [190, 420, 640, 840] {
        let _ = write!(s, "<path class=\"wire\" d=\"M{x} 144V230H500V270\"/>");
    }
    s + "<text class=\"small\" x=\"850\" y=\"234\">physical network, tagged</text></svg>"
}

/// The part of time that timelines show.
struct Span {
    from: u64,
    to: u64,
}

impl Span {
    fn of(f: &Failover) -> Span {
        Span { from: f.killed.saturating_sub(1_500_000), to: f.revived + 5_000_000 }
    }

    fn has(&self, t: u64) -> bool {
        (self.from..self.to).contains(&t)
    }

    /// Where a moment is in a drawing that is 1,000 wide, `left` of it without time.
    fn x(&self, t: u64, left: f64) -> f64 {
        left + (980.0 - left) * (t.clamp(self.from, self.to) - self.from) as f64 / (self.to - self.from) as f64
    }

    /// The axis, seconds from the kill, and the marks: the kill and the start. `y` is the axis' height.
    fn axis(&self, f: &Failover, victim: &str, left: f64, y: i32) -> String {
        let mut s = String::new();
        for second in -1i64.. {
            let t = f.killed.saturating_add_signed(second * 1_000_000);
            if t >= self.to {
                break;
            }
            let x = self.x(t, left);
            let _ = write!(
                s,
                "<path class=\"wire\" d=\"M{x:.1} {y}V{}\"/><text class=\"small\" x=\"{x:.1}\" y=\"{}\" \
                 text-anchor=\"middle\">{second} s</text>",
                y + 6,
                y + 35
            );
        }
        for (t, word) in [(f.killed, format!("{victim} killed")), (f.revived, format!("{victim} started"))] {
            let x = self.x(t, left);
            let _ = write!(
                s,
                "<path class=\"mark\" d=\"M{x:.1} 5V{}\"/><text class=\"small\" x=\"{x:.1}\" y=\"{}\">{word}</text>",
                y + 5,
                y + 20
            );
        }
        s
    }
}

/// Ticks for arrivals, of which one for each pixel's worth of time is all that can be seen, and a red field for each silence
/// of more than 30 ms, or of `most` microseconds.
fn ticks(times: &[u64], span: &Span, left: f64, (top, bottom): (i32, i32), most: u64) -> String {
    let mut s = String::new();
    for w in times.windows(2).filter(|w| w[1] - w[0] > most && span.has(w[0].max(span.from)) && w[1] > span.from) {
        let (from, to) = (span.x(w[0], left), span.x(w[1], left));
        let _ = write!(
            s,
            "<rect class=\"gap\" x=\"{from:.1}\" y=\"{top}\" width=\"{:.1}\" height=\"{}\"/>",
            to - from,
            bottom - top
        );
    }
    let mut last = -1.0;
    for t in times.iter().filter(|t| span.has(**t)) {
        let at = span.x(*t, left);
        if at - last >= 0.8 {
            let _ = write!(s, "<path class=\"tick\" d=\"M{at:.1} {}V{}\"/>", top + 2, bottom - 2);
            last = at;
        }
    }
    s
}

/// One direction: ticks for arrivals, a red field for the longest silence of each part.
fn timeline(title: &str, a: &Arrivals, f: &Failover, victim: &str) -> String {
    let span = Span::of(f);
    let mut times: Vec<u64> = a.datagrams.iter().map(|d| d.1).collect();
    times.sort_unstable();
    format!(
        "<p><b>{}</b>: {} ms at failover, {} ms at failback</p><svg viewBox=\"0 0 1000 100\" role=\"img\">{}{}</svg>",
        escape(title),
        outage(a, f.killed, f.revived).0 / 1000,
        outage(a, f.revived, span.to).0 / 1000,
        ticks(&times, &span, 20.0, (15, 55), 30_000),
        span.axis(f, victim, 20.0, 60)
    )
}
