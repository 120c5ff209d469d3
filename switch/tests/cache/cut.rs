//! Datagrams in fragments.

use packet::{Headers, checksum};

/// Cuts an IP packet in an untagged frame into fragments of so many bytes of payload.
pub fn cut(p: &[u8], size: usize, id: u16) -> Vec<Vec<u8>> {
    let h = Headers::parse(p).expect("headers");
    let head = 14 + if h.is_ipv4() { 20 } else { 40 };
    let body = &p[head..h.l3_end];
    let mut out = Vec::new();
    for (i, part) in body.chunks(size).enumerate() {
        let (offset, more) = ((i * size) as u16, (i + 1) * size < body.len());
        let mut f = p[..head].to_vec();
        if h.is_ipv4() {
            f[16..18].copy_from_slice(&((20 + part.len()) as u16).to_be_bytes());
            f[18..20].copy_from_slice(&id.to_be_bytes());
            f[20..22].copy_from_slice(&((offset / 8) | (u16::from(more) << 13)).to_be_bytes());
            checksum::set_ipv4(&mut f, 14);
        } else {
            f[18..20].copy_from_slice(&((8 + part.len()) as u16).to_be_bytes());
            let next = std::mem::replace(&mut f[20], 44);
            let o = (offset | u16::from(more)).to_be_bytes();
            f.extend_from_slice(&[next, 0, o[0], o[1], 0, 0]);
            f.extend_from_slice(&id.to_be_bytes());
        }
        f.extend_from_slice(part);
        out.push(f);
    }
    out
}
