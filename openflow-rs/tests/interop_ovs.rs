//! Against the installed Open vSwitch: flows that we encode are shown by `ovs-ofctl` as the same text, and we decode
//! its replies to the same text.

use openflow_rs::connection::{OUR_VERSIONS, Receiver, Sender, negotiate};
use openflow_rs::message::*;
use openflow_rs::text::{flow_to_string, group_to_string, meter_to_string, parse_flow, parse_group, parse_meter};
use openflow_rs::*;
use std::collections::{BTreeSet, HashSet};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tokio::net::UnixStream;

struct Ovs {
    dir: tempfile::TempDir,
    children: Vec<Child>,
}

impl Drop for Ovs {
    fn drop(&mut self) {
        for c in self.children.iter_mut().rev() {
            let _ = c.kill();
            let _ = c.wait();
        }
    }
}

fn wait_for(path: &Path) -> bool {
    (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        path.exists()
    })
}

impl Ovs {
    /// Starts the daemons with dummy ports; `None`, and the test is skipped, if Open vSwitch is not installed.
    fn start() -> Option<Ovs> {
        let schema = "/usr/share/openvswitch/vswitch.ovsschema";
        if !needs::installed(&[schema, "ovs-vswitchd"]) {
            return None;
        }
        let dir = tempfile::tempdir().expect("temporary folder");
        let p = |n: &str| dir.path().join(n).display().to_string();
        assert!(
            Command::new("ovsdb-tool").args(["create", &p("conf.db"), schema]).status().expect("ovsdb-tool").success()
        );
        let mut ovs = Ovs { children: Vec::new(), dir };
        let remote = format!("punix:{}", ovs.path("db.sock"));
        ovs.spawn("ovsdb-server", &["--no-chdir", &format!("--remote={remote}"), &ovs.path("conf.db")]);
        assert!(wait_for(Path::new(&ovs.path("db.sock"))));
        ovs.spawn(
            "ovs-vswitchd",
            &["--enable-dummy=override", "--disable-system", &format!("unix:{}", ovs.path("db.sock"))],
        );
        let out = ovs.run(
            "ovs-vsctl",
            &[
                &format!("--db=unix:{}", ovs.path("db.sock")),
                "add-br",
                "br0",
                "--",
                "set",
                "bridge",
                "br0",
                "datapath_type=dummy",
                "fail-mode=secure",
                "--",
                "add-port",
                "br0",
                "p1",
            ],
        );
        assert_eq!(out, "");
        assert!(wait_for(Path::new(&ovs.path("br0.mgmt"))));
        Some(ovs)
    }

    fn path(&self, n: &str) -> String {
        self.dir.path().join(n).display().to_string()
    }

    fn spawn(&mut self, cmd: &str, args: &[&str]) {
        let d = self.dir.path();
        let child = Command::new(cmd)
            .args(args)
            .envs([("OVS_RUNDIR", d), ("OVS_LOGDIR", d), ("OVS_DBDIR", d), ("OVS_SYSCONFDIR", d)])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("starts");
        self.children.push(child);
    }

    fn run(&self, cmd: &str, args: &[&str]) -> String {
        let d = self.dir.path();
        let out = Command::new(cmd).args(args).envs([("OVS_RUNDIR", d), ("OVS_LOGDIR", d)]).output().expect("runs");
        assert!(out.status.success(), "{cmd} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    fn ofctl(&self, args: &[&str]) -> String {
        let mut v = vec!["-O", "OpenFlow15"];
        v.extend_from_slice(args);
        let bridge = format!("unix:{}", self.path("br0.mgmt"));
        v.push(&bridge);
        self.run("ovs-ofctl", &v)
    }
}

/// Collects replies until the barrier.
async fn ask(tx: &mut Sender<UnixStream>, rx: &mut Receiver<UnixStream>, list: &[Message]) -> Vec<Message> {
    for m in list {
        let xid = tx.xid();
        tx.queue(xid, m);
    }
    let barrier = tx.send(&Message::BarrierRequest).await.expect("sends");
    let mut out = Vec::new();
    loop {
        let r = rx.recv().await.expect("receives");
        match r.message.unwrap_or_else(|e| panic!("{e}: {:02x?}", r.raw)) {
            Message::BarrierReply if r.header.xid == barrier => return out,
            Message::EchoRequest(b) => tx.reply(r.header.xid, &Message::EchoReply(b)).await.expect("sends"),
            Message::Error { error_type, code, data } => {
                panic!("error {error_type},{code}: {:02x?}", data);
            }
            m => out.push(m),
        }
    }
}

fn sorted(lines: impl Iterator<Item = String>) -> Vec<String> {
    let mut v: Vec<String> = lines.collect();
    v.sort();
    v
}

/// Lines of the recorded tables that this (older) Open vSwitch knows, one for each table, priority and match; of every
/// ninth table, or of all with `OPENFLOW_ALL`.
fn sample_flows() -> Vec<String> {
    let step = if std::env::var_os("OPENFLOW_ALL").is_some() { 1 } else { 9 };
    let mut v: Vec<String> = EXTRA.iter().map(|s| format!(" {s}")).collect();
    if let Some(cases) = golden::files(&[".flows"]) {
        for (_, text) in cases.iter().step_by(step) {
            v.extend(
                text.lines().filter(|l| l.contains("actions=") && !l.contains("obs_point_id=NXM")).map(str::to_string),
            );
        }
    }
    let mut seen = HashSet::new();
    v.retain(|l| {
        let f = parse_flow(l).expect("flow");
        seen.insert((f.table, f.priority, f.matches))
    });
    v
}

/// Every number behind a word in the lines: the groups or meters that flows use.
fn used(lines: &[String], word: &str) -> BTreeSet<u32> {
    let numbers = |l: &String| -> Vec<u32> {
        let digits = |t: &str| t.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok());
        l.split(word).skip(1).filter_map(digits).collect()
    };
    lines.iter().flat_map(numbers).collect()
}

const EXTRA: &[&str] = &[
    "table=200, priority=1,in_port=1 actions=check_pkt_larger(1500)->NXM_NX_REG1[3],output:NXM_NX_REG0[0..15],output(port=1,max_len=64)",
    "table=200, priority=2,in_port=1 actions=bundle_load(symmetric_l4,0,hrw,ofport,NXM_NX_REG0[0..15],members:1,2)",
    "table=200, priority=20,in_port=1 actions=multipath(symmetric_l3l4,7,hrw,12,0,NXM_NX_REG0[0..3])",
    "table=200, priority=3,in_port=1 actions=sample(probability=9,collector_set_id=1,obs_domain_id=2,obs_point_id=3,sampling_port=1,ingress)",
    "table=200, priority=4,in_port=1 actions=learn(table=3,idle_timeout=5,hard_timeout=6,priority=9,cookie=0x1,limit=7,result_dst=NXM_NX_REG0[1],NXM_OF_VLAN_TCI[0..11],NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[])",
    "table=200, priority=5,in_port=1 actions=write_metadata:0x5/0xff,goto_table:201",
    "table=200, priority=6,tcp,in_port=1,nw_tos=32,nw_ttl=3,tp_src=0x10/0xfff0,tcp_flags=+syn-ack actions=IN_PORT",
    "table=200, priority=7,in_port=1,dl_vlan=5,dl_vlan_pcp=3 actions=NORMAL",
    "table=200, priority=8,in_port=1,vlan_tci=0x0000/0x1fff actions=FLOOD",
    "table=200, priority=9,udp6,in_port=1,ipv6_src=fe80::/64,ipv6_label=0x12345 actions=note:01.02.03.04.05.06,exit",
    "table=200, priority=10,tcp,in_port=1 actions=ct(commit,force,table=3,zone=5,nat(dst=10.0.0.1-10.0.0.9:80-90,random),alg=ftp)",
    "table=200, priority=11,ipv6,in_port=1 actions=ct(commit,zone=NXM_NX_REG1[0..15],nat(src=fd00::1-fd00::9,persistent,hash))",
    "table=200, priority=12,in_port=1 actions=write_actions(set_field:00:00:00:00:00:01->eth_dst,output:1)",
    "table=200, priority=13,ip,in_port=1 actions=dec_ttl,dec_ttl(1,2),CONTROLLER:128,controller(reason=invalid_ttl,max_len=5,id=3,pause)",
    "table=200, priority=14,tun_id=0x5,tun_src=1.2.3.0/24,in_port=1 actions=LOCAL,ALL,resubmit:1,resubmit(1,)",
    "table=200, idle_timeout=500, hard_timeout=900, send_flow_rem importance=3, priority=15,tcp,in_port=1 actions=fin_timeout(idle_timeout=1,hard_timeout=2),delete_field:tun_metadata0",
    "table=200, priority=16,in_port=1,dl_type=0x894f,nsh_flags=2,nsh_ttl=63,nsh_mdtype=1,nsh_np=3,nsh_spi=0x123456,nsh_si=255,nsh_c1=0x11223344,nsh_c4=0x7700/0xff00 actions=dec_nsh_ttl,set_field:254->nsh_si,set_field:0x7700/0xff00->nsh_c3,move:NXOXM_NSH_C1[]->NXM_NX_REG0[],decap(),decap(),output:2",
    "table=200, priority=17,packet_type=(1,0x800),in_port=1,nw_dst=10.11.12.13 actions=dec_ttl,encap(nsh(md_type=1)),set_field:0x1234->nsh_spi,encap(ethernet),set_field:00:00:00:00:00:01->eth_dst,output:2",
    "table=200, priority=18,packet_type=(1,0x894f),in_port=1 actions=encap(nsh(md_type=2,tlv(0x1000,10,0x12345678),tlv(0x2000,20,0xfedcba9876543210))),decap(packet_type(ns=0,type=0))",
    "table=200, priority=19,ip,in_port=1 actions=decap(),encap(mpls),set_field:5->mpls_label,encap(ethernet),output:2",
];

async fn connect(ovs: &Ovs, offer: u32) -> (Sender<UnixStream>, Receiver<UnixStream>) {
    let stream = UnixStream::connect(ovs.path("br0.mgmt")).await.expect("connects");
    negotiate(stream, offer).await.expect("negotiates")
}

/// Their flows, decoded by us, as text.
async fn our_dump(ovs: &Ovs, version: Version) -> Vec<String> {
    let (mut tx, mut rx) = connect(ovs, 1 << version as u8).await;
    assert_eq!(tx.version(), version);
    let q = Message::MultipartRequest(MultipartRequest::Flow(FlowStatsRequest::default()));
    let mut lines = Vec::new();
    for m in ask(&mut tx, &mut rx, &[q]).await {
        let Message::MultipartReply { body: MultipartReply::Flow(l), .. } = m else { panic!("{m:?}") };
        lines.extend(l.iter().map(|s| flow_to_string(&s.flow)));
    }
    sorted(lines.into_iter())
}

async fn compare_flows(ovs: &Ovs, lines: &[String]) {
    let (mut tx, mut rx) = connect(ovs, OUR_VERSIONS).await;
    assert_eq!(tx.version(), Version::Of15);
    let maps = vec![TlvMap { class: 0x102, kind: 0x80, len: 4, index: 0 }];
    let map = TlvTableMod { command: 0, maps };
    ask(&mut tx, &mut rx, &[Message::TlvTableMod(map.clone())]).await;
    let reply = ask(&mut tx, &mut rx, &[Message::TlvTableRequest]).await;
    assert!(matches!(&reply[..], [Message::TlvTableReply(t)] if t.maps == map.maps), "{reply:?}");
    let groups = "group_id=1,type=select,selection_method=hash,fields(ip_src,ip_dst),bucket=bucket_id:0,weight:100,actions=output:1,bucket=bucket_id:1,weight:50,watch_port:1,actions=output:2";
    let group = parse_group(groups).expect("group");
    let meter = parse_meter("meter=1 pktps burst stats bands=\ntype=drop rate=100 burst_size=10").expect("meter");
    let meters: Vec<Message> = used(lines, "meter:")
        .into_iter()
        .chain([1])
        .collect::<BTreeSet<_>>()
        .into_iter()
        .map(|id| {
            let mut m = meter.clone();
            m.id = MeterId(id);
            Message::MeterMod(MeterMod { command: MeterModCommand::Add, meter: m })
        })
        .collect();
    ask(&mut tx, &mut rx, &meters).await;
    for id in used(lines, "group:").into_iter().chain([1]).collect::<BTreeSet<_>>() {
        let mut g = group.clone();
        g.id = GroupId(id);
        ask(&mut tx, &mut rx, &[Message::GroupMod(GroupMod::new(GroupModCommand::Add, g))]).await;
    }
    let control =
        |command| Message::BundleControl(BundleControl { id: 9, command, flags: BUNDLE_ATOMIC | BUNDLE_ORDERED });
    let mut batch = vec![control(BundleCommand::OpenRequest)];
    for l in lines {
        let f = parse_flow(l).expect("flow");
        let message = Box::new(Message::FlowMod(f));
        batch.push(Message::BundleAdd(BundleAdd { id: 9, flags: 3, message }));
    }
    batch.push(control(BundleCommand::CommitRequest));
    ask(&mut tx, &mut rx, &batch).await;
    let got = ask(&mut tx, &mut rx, &[Message::MultipartRequest(MultipartRequest::GroupDesc(GroupId(1)))]).await;
    assert!(
        matches!(&got[..], [Message::MultipartReply { body: MultipartReply::GroupDesc(l), .. }] if group_to_string(&l[0]) == format!(" {groups}")),
        "{got:?}"
    );
    let got = ask(&mut tx, &mut rx, &[Message::MultipartRequest(MultipartRequest::MeterConfig(MeterId(1)))]).await;
    assert!(
        matches!(&got[..], [Message::MultipartReply { body: MultipartReply::MeterConfig(l), .. }] if *l == [meter.clone()]),
        "{got:?}"
    );
    for q in [
        MultipartRequest::Desc,
        MultipartRequest::Table,
        MultipartRequest::PortDesc(PortNo::ANY),
        MultipartRequest::PortStats(PortNo::ANY),
        MultipartRequest::GroupStats(GroupId::ALL),
        MultipartRequest::GroupFeatures,
        MultipartRequest::MeterStats(MeterId(1)),
        MultipartRequest::MeterFeatures,
        MultipartRequest::Aggregate(FlowStatsRequest::default()),
    ] {
        let got = ask(&mut tx, &mut rx, &[Message::MultipartRequest(q.clone())]).await;
        assert!(
            !got.is_empty()
                && got.iter().all(|m| !matches!(m, Message::MultipartReply { body: MultipartReply::Other(..), .. })),
            "{q:?} {got:?}"
        );
    }
    assert!(ovs.ofctl(&["dump-meters"]).contains(&meter_to_string(&meter)));
}

#[test]
fn open_vswitch_understands_us_and_we_it() {
    let Some(ovs) = Ovs::start() else { return };
    let lines = sample_flows();
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    rt.block_on(compare_flows(&ovs, &lines));
    let shown = ovs.ofctl(&["--no-stats", "--no-names", "dump-flows"]);
    let shown = sorted(shown.lines().filter(|l| l.contains("actions=")).map(str::to_string));
    let want = sorted(lines.iter().map(|l| flow_to_string(&parse_flow(l).expect("flow"))));
    let (there, wanted): (HashSet<&String>, HashSet<&String>) = (shown.iter().collect(), want.iter().collect());
    let missing: Vec<_> = wanted.difference(&there).collect();
    let others: Vec<_> = there.difference(&wanted).collect();
    println!("{} flows", want.len());
    assert!(missing.is_empty(), "{} differ: ours {:#?}, theirs {:#?}", missing.len(), missing.first(), others.first());
    for v in [Version::Of12, Version::Of13, Version::Of14, Version::Of15] {
        let dump = rt.block_on(our_dump(&ovs, v));
        assert_eq!(dump.len(), shown.len());
        if v == Version::Of15 {
            assert_eq!(dump, shown);
        }
    }
}

/// Every recorded group and meter, under numbers of our own.
#[test]
fn open_vswitch_shows_the_recorded_groups_and_meters_as_they_are() {
    let Some(cases) = golden::files(&[".groups", ".meters"]) else { return };
    let Some(ovs) = Ovs::start() else { return };
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    let (mut tx, mut rx) = rt.block_on(connect(&ovs, OUR_VERSIONS));
    let (mut groups, mut meters) = (Vec::new(), Vec::new());
    let mut seen = HashSet::new();
    for (_, text) in &cases {
        for line in text.lines().filter(|l| l.starts_with(" group_id=")) {
            let mut g = parse_group(line).expect("group");
            g.id = GroupId(0);
            if seen.insert(group_to_string(&g)) {
                g.id = GroupId(1 + groups.len() as u32);
                groups.push(g);
            }
        }
        for block in text.split("\n\n").filter_map(|b| b.find("meter=").map(|at| b[at..].trim())) {
            let mut m = parse_meter(block).expect("meter");
            m.id = MeterId(0);
            if seen.insert(meter_to_string(&m)) {
                m.id = MeterId(1 + meters.len() as u32);
                meters.push(m);
            }
        }
    }
    println!("{} groups, {} meters", groups.len(), meters.len());
    assert!(groups.len() > 10 && !meters.is_empty());
    let add = groups.iter().map(|g| Message::GroupMod(GroupMod::new(GroupModCommand::Add, g.clone())));
    let meter = |m: &MeterConfig| Message::MeterMod(MeterMod { command: MeterModCommand::Add, meter: m.clone() });
    let batch: Vec<Message> = add.chain(meters.iter().map(meter)).collect();
    for part in batch.chunks(100) {
        rt.block_on(ask(&mut tx, &mut rx, part));
    }
    let shown = ovs.ofctl(&["--no-names", "dump-groups"]);
    let shown: HashSet<&str> = shown.lines().collect();
    for g in &groups {
        assert!(shown.contains(&*group_to_string(g)), "{}: {shown:#?}", group_to_string(g));
    }
    let shown = ovs.ofctl(&["dump-meters"]);
    for m in &meters {
        assert!(shown.contains(&meter_to_string(m)), "{}: {shown}", meter_to_string(m));
    }
    // And what it says of them is what we sent.
    let said = rt.block_on(ask(
        &mut tx,
        &mut rx,
        &[
            Message::MultipartRequest(MultipartRequest::GroupDesc(GroupId::ALL)),
            Message::MultipartRequest(MultipartRequest::MeterConfig(MeterId(u32::MAX))),
        ],
    ));
    let (mut theirs, mut limits) = (Vec::new(), Vec::new());
    for m in said {
        match m {
            Message::MultipartReply { body: MultipartReply::GroupDesc(l), .. } => theirs.extend(l),
            Message::MultipartReply { body: MultipartReply::MeterConfig(l), .. } => limits.extend(l),
            m => panic!("{m:?}"),
        }
    }
    theirs.sort_by_key(|g| g.id);
    limits.sort_by_key(|m| m.id);
    for (theirs, ours) in theirs.iter().zip(&groups) {
        assert_eq!(group_to_string(theirs), group_to_string(ours));
    }
    assert_eq!(theirs.len(), groups.len());
    // Where a meter has no burst, Open vSwitch shows one that it chose.
    let text = |l: &[MeterConfig]| l.iter().map(meter_to_string).collect::<Vec<_>>();
    assert_eq!(text(&limits), text(&meters));
}

/// Waits for a message that is wanted. `cause` is done again every two seconds.
fn wait<T>(
    rt: &tokio::runtime::Runtime,
    rx: &mut Receiver<UnixStream>,
    what: &str,
    mut cause: impl FnMut(),
    mut wanted: impl FnMut(&Message) -> Option<T>,
) -> T {
    for _ in 0..8 {
        cause();
        let search = async {
            loop {
                let r = rx.recv().await.expect("receives");
                if let Some(t) = wanted(&r.message.unwrap_or_else(|e| panic!("{e}: {:02x?}", r.raw))) {
                    return t;
                }
            }
        };
        let found = rt.block_on(async { tokio::time::timeout(std::time::Duration::from_secs(2), search).await });
        if let Ok(t) = found {
            return t;
        }
    }
    panic!("{what} did not come")
}

/// What a controller and a switch say to each other beyond tables, in each version.
#[test]
fn open_vswitch_answers_and_tells_us_in_each_version() {
    let Some(ovs) = Ovs::start() else { return };
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    let db = format!("--db=unix:{}", ovs.path("db.sock"));
    let set = ["set", "bridge", "br0", "protocols=[]"];
    ovs.run("ovs-vsctl", &[&[db.as_str()][..], &set].concat());
    for v in (1..=6).filter_map(Version::from_u8) {
        let (mut tx, mut rx) = rt.block_on(connect(&ovs, 1 << v as u8));
        let one = |tx: &mut _, rx: &mut _, m: Message| {
            // What it tells of itself may come between.
            rt.block_on(ask(tx, rx, &[m])).into_iter().find(|m| !matches!(m, Message::PortStatus(_)))
        };
        let echo = one(&mut tx, &mut rx, Message::EchoRequest(vec![1, 2, 3]));
        assert_eq!(echo, Some(Message::EchoReply(vec![1, 2, 3])), "{v:?}");
        match one(&mut tx, &mut rx, Message::FeaturesRequest) {
            Some(Message::FeaturesReply(f)) => assert_eq!(f.n_tables, 254, "{v:?}"),
            other => panic!("{v:?}: {other:?}"),
        }
        let config = SwitchConfig { flags: 0, miss_send_len: 200 };
        assert_eq!(one(&mut tx, &mut rx, Message::SetConfig(config)), None);
        let got = one(&mut tx, &mut rx, Message::GetConfigRequest);
        assert_eq!(got, Some(Message::GetConfigReply(config)), "{v:?}");
        let role = Role { role: 2, short_id: 0, generation_id: u64::from(v as u8) };
        match one(&mut tx, &mut rx, Message::RoleRequest(role)) {
            Some(Message::RoleReply(r)) => assert_eq!(r.role, 2, "{v:?}"),
            other => panic!("{v:?}: {other:?}"),
        }
        let mut flows = vec![Message::SetPacketInFormat(2), Message::SetControllerId(3)];
        if v == Version::Of10 {
            flows.push(Message::FlowModTableId(true));
        }
        // 1.1 has no word for all tables.
        let everything =
            FlowMod { table: if v == Version::Of11 { TableId::FIRST } else { TableId::ALL }, ..FlowMod::delete_all() };
        flows.push(Message::FlowMod(everything.clone()));
        let f = "table=0,priority=7,send_flow_rem,udp,in_port=1 actions=controller(userdata=01.02,pause,id=3),LOCAL";
        flows.push(Message::FlowMod(parse_flow(f).expect("flow")));
        rt.block_on(ask(&mut tx, &mut rx, &flows));
        let eth = "in_port(1),eth(src=50:54:00:00:00:09,dst=50:54:00:00:00:0a),eth_type(0x0800)";
        let ip = "ipv4(src=10.0.0.1,dst=10.0.0.2,proto=17,tos=0,ttl=64,frag=no),udp(src=1,dst=53)";
        // Its datapath may hold on to what the flow of the version before was for a while.
        let arrive = || receive(&ovs, &format!("{eth},{ip}"));
        let packet = wait(&rt, &mut rx, "a packet-in", arrive, |m| {
            if let Message::PacketIn2(p) = m { Some(p.clone()) } else { None }
        });
        assert_eq!(
            (packet.userdata.as_slice(), packet.metadata.exact(FieldId::InPort)),
            (&[1, 2][..], Some(1)),
            "{v:?}"
        );
        assert!(packet.continuation.is_some());
        rt.block_on(ask(&mut tx, &mut rx, &[Message::Resume(packet.clone())]));
        let out = PacketOut::new(PortNo::CONTROLLER, packet.packet, vec![Action::output(PortNo(1))]);
        rt.block_on(ask(&mut tx, &mut rx, &[Message::PacketOut(out)]));
        match one(&mut tx, &mut rx, Message::MultipartRequest(MultipartRequest::PortStats(PortNo(1)))) {
            Some(Message::MultipartReply { body: MultipartReply::PortStats(l), .. }) => {
                assert!(l.len() == 1 && l[0].counters[1] > 0, "{v:?}: {l:?}");
            }
            other => panic!("{v:?}: {other:?}"),
        }
        // A flow goes, and says so.
        let xid = tx.xid();
        tx.queue(xid, &Message::FlowMod(everything));
        rt.block_on(tx.flush()).expect("sends");
        let gone = wait(
            &rt,
            &mut rx,
            "flow removed",
            || (),
            |m| if let Message::FlowRemoved(r) = m { Some(r.clone()) } else { None },
        );
        let matches: Match = "udp,in_port=1".parse().expect("match");
        assert_eq!((gone.matches, gone.priority, gone.reason), (matches, 7, 2), "{v:?}");
        // A port comes, changes and goes.
        let status = |rx: &mut _, reason: u8, name: &str| {
            wait(
                &rt,
                rx,
                &format!("{v:?}: port status {reason}"),
                || (),
                |m| match m {
                    Message::PortStatus(s) if s.reason == reason && s.desc.name == name => Some(s.desc.clone()),
                    _ => None,
                },
            )
        };
        ovs.run("ovs-vsctl", &[&db, "add-port", "br0", "px"]);
        let there = status(&mut rx, 0, "px");
        let no_packet_in = 1 << 6;
        let change = PortMod { port: there.port, hw_addr: there.hw_addr, config: no_packet_in, mask: no_packet_in };
        let xid = tx.xid();
        tx.queue(xid, &Message::PortMod(change));
        rt.block_on(tx.flush()).expect("sends");
        // Who asked for the change is told of it since 1.5.
        if v >= Version::Of15 {
            wait(
                &rt,
                &mut rx,
                "the change of a port",
                || (),
                |m| match m {
                    Message::PortStatus(s) => (s.desc.config == no_packet_in).then_some(()),
                    _ => None,
                },
            );
        }
        match one(&mut tx, &mut rx, Message::MultipartRequest(MultipartRequest::PortDesc(PortNo::ANY))) {
            Some(Message::MultipartReply { body: MultipartReply::PortDesc(l), .. }) => {
                assert!(l.iter().any(|p| p.name == "px" && p.config == no_packet_in), "{v:?}: {l:?}");
            }
            other => panic!("{v:?}: {other:?}"),
        }
        ovs.run("ovs-vsctl", &[&db, "del-port", "br0", "px"]);
        assert_eq!(status(&mut rx, 1, "px").port, there.port);
        // What is wrong is told so.
        let xid = tx.xid();
        tx.queue(xid, &Message::FlowMod(parse_flow("actions=group:4242").expect("flow")));
        rt.block_on(tx.flush()).expect("sends");
        let error = wait(
            &rt,
            &mut rx,
            "an error",
            || (),
            |m| match m {
                Message::Error { error_type, code, .. } => Some((*error_type, *code)),
                _ => None,
            },
        );
        let expected = if v == Version::Of10 { (0xb0c2, 0) } else { (2, 9) };
        assert_eq!(error, expected, "{v:?}");
    }
}

/// Ways to set fields, in which the versions differ.
const LOADS: &[&str] = &[
    "in_port=1 actions=load:5->NXM_NX_REG0[3..7],load:0x1->NXM_OF_ETH_DST[]",
    "in_port=2 actions=load:5->NXM_NX_REG0[],load:0xffff000000000001->NXM_NX_XXREG0[3..66]",
    "ip,in_port=3 actions=ct(commit,exec(load:1->NXM_NX_CT_MARK[1..3],set_field:0xf0f/0xf0f->ct_mark))",
    "in_port=4 actions=load:0x8000000000000001->OXM_OF_METADATA[],set_field:0xff->reg3,set_field:1/1->reg4",
    "in_port=5 actions=set_field:0x12000000000000034000000000000050/0xff0000000000000ff0000000000000f0->xxreg1",
    "tcp,in_port=7,dl_vlan=5,dl_vlan_pcp=1 actions=mod_vlan_vid:6,mod_vlan_pcp:3,mod_dl_src:00:00:00:00:00:09,mod_dl_dst:00:00:00:00:00:07,output:2",
    "udp,nw_src=10.1.0.0/16,nw_tos=32,tp_dst=53,metadata=0x5/0xff actions=mod_nw_src:1.2.3.4,mod_nw_dst:4.3.2.1,mod_nw_tos:64,mod_tp_src:9,mod_tp_dst:7,dec_ttl,LOCAL",
    "arp,arp_spa=1.2.3.0/24,arp_op=2,dl_src=01:00:00:00:00:00/01:00:00:00:00:00 actions=goto_table:3",
    "vlan_tci=0,icmp,icmp_type=8,icmp_code=0 actions=set_queue:3,clear_actions,write_actions(output:1)",
    "tcp,in_port=6 actions=set_field:0x1/0x3->tcp_dst,move:NXM_NX_REG0[0..7]->NXM_NX_REG1[8..15]",
];

/// What ovs-ofctl and we send for these is shown the same in each version; what 1.5 has no place for is refused alike.
#[test]
fn fields_are_set_as_each_version_does() {
    let Some(ovs) = Ovs::start() else { return };
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    let target = format!("unix:{}", ovs.path("br0.mgmt"));
    for v in [Version::Of11, Version::Of12, Version::Of13, Version::Of14, Version::Of15] {
        let name = format!("OpenFlow1{}", v as u8 - 1);
        let shown = || ovs.run("ovs-ofctl", &["-O", &name, "--no-stats", "--no-names", "dump-flows", &target]);
        let delete = || ovs.run("ovs-ofctl", &["-O", &name, "del-flows", &target]);
        // 1.1 sets no parts of fields.
        for f in LOADS.iter().filter(|f| v > Version::Of11 || !f.contains("set_field:")) {
            delete();
            ovs.run("ovs-ofctl", &["-O", &name, "add-flow", &target, f]);
            let theirs = shown();
            // Their bytes, read by us, say what they show.
            let ours = rt.block_on(our_dump(&ovs, v));
            // The actions of 1.1 for single fields have words of their own there.
            let same = theirs.lines().any(|l| ours.iter().any(|o| o == l));
            assert!(same || (v == Version::Of11 && f.contains("mod_")), "{v:?}: {theirs} {ours:?}");
            delete();
            let (mut tx, mut rx) = rt.block_on(connect(&ovs, 1 << v as u8));
            rt.block_on(ask(&mut tx, &mut rx, &[Message::FlowMod(parse_flow(f).expect("flow"))]));
            assert_eq!(shown(), theirs, "{v:?}: {f}");
        }
    }
    refused_alike(&ovs);
}

/// Bytes of 1.3's loads and moves, in a message of 1.5.
fn refused_alike(ovs: &Ovs) {
    for f in ["actions=load:5->NXM_NX_REG0[3..7]", "actions=move:NXM_NX_REG0[0..7]->NXM_NX_REG1[8..15]"] {
        let mut bytes = Message::FlowMod(parse_flow(f).expect("flow")).encode(Version::Of13, 1);
        bytes[0] = Version::Of15 as u8;
        let ours = Message::decode(&bytes).expect_err(f);
        let mut stream = std::os::unix::net::UnixStream::connect(ovs.path("br0.mgmt")).expect("connects");
        stream.write_all(&Message::Hello(Some(OUR_VERSIONS)).encode(Version::Of15, 1)).expect("sends");
        stream.write_all(&bytes).expect("sends");
        let theirs = loop {
            let mut raw = vec![0; 8];
            stream.read_exact(&mut raw).expect("receives");
            raw.resize(usize::from(u16::from_be_bytes([raw[2], raw[3]])), 0);
            stream.read_exact(&mut raw[8..]).expect("receives");
            if let Ok((_, Message::Error { error_type, code, .. })) = Message::decode(&raw) {
                break (error_type, code);
            }
        };
        assert_eq!(ours.numbers(), theirs, "{f}");
    }
}

/// Sends a packet into p1.
fn receive(ovs: &Ovs, packet: &str) {
    ovs.appctl(&["netdev-dummy/receive", "p1", packet]);
}

impl Ovs {
    fn appctl(&self, args: &[&str]) -> String {
        let pid = self.children.last().expect("ovs-vswitchd").id();
        let target = self.path(&format!("ovs-vswitchd.{pid}.ctl"));
        let mut v = vec!["-t", &target];
        v.extend_from_slice(args);
        self.run("ovs-appctl", &v)
    }
}

#[test]
fn open_vswitch_flushes_the_connections_that_we_name() {
    let Some(ovs) = Ovs::start() else { return };
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    let (mut tx, mut rx) = rt.block_on(connect(&ovs, OUR_VERSIONS));
    let flows = ["udp,actions=ct(commit,zone=5)", "icmp,actions=ct(commit,zone=6,exec(set_field:0x5->ct_mark))"];
    let flows: Vec<Message> = flows.iter().map(|f| Message::FlowMod(parse_flow(f).expect("flow"))).collect();
    rt.block_on(ask(&mut tx, &mut rx, &flows));
    let eth = "in_port(1),eth(src=50:54:00:00:00:09,dst=50:54:00:00:00:0a),eth_type(0x0800)";
    let ip = |proto| format!("ipv4(src=10.0.0.1,dst=10.0.0.2,proto={proto},tos=0,ttl=64,frag=no)");
    for port in 1..=3 {
        receive(&ovs, &format!("{eth},{},udp(src={port},dst=53)", ip(17)));
    }
    receive(&ovs, &format!("{eth},{},icmp(type=8,code=0)", ip(1)));
    let connections = || ovs.appctl(&["dpctl/dump-conntrack"]).lines().count();
    assert_eq!(connections(), 4, "{}", ovs.appctl(&["dpctl/dump-conntrack"]));
    let address = |n: u8| Some(std::net::IpAddr::from([10, 0, 0, n]));
    let udp = |src_port| CtFlush {
        proto: 17,
        zone: Some(5),
        original: CtTuple { src: address(1), dst: address(2), src_port, dst_port: Some(53), ..Default::default() },
        ..Default::default()
    };
    let mut flush = |f: CtFlush| {
        rt.block_on(ask(&mut tx, &mut rx, &[Message::CtFlush(f)]));
        connections()
    };
    assert_eq!(flush(CtFlush { zone: Some(9), ..Default::default() }), 4);
    assert_eq!(flush(udp(Some(1))), 3);
    let icmp = CtFlush {
        proto: 1,
        zone: Some(6),
        original: CtTuple {
            src: address(1),
            dst: address(2),
            icmp_id: Some(0),
            icmp_type: Some(8),
            icmp_code: Some(0),
            ..Default::default()
        },
        ..Default::default()
    };
    assert_eq!(flush(icmp), 2);
    // A part of a tuple: both that are left.
    assert_eq!(flush(udp(None)), 0);
}
