//! The order of a set within a text. Where a match or a flow's actions list a set, OVN lists it in the order of the hash table
//! that holds it: a table of chains that doubles as it fills, over the MurmurHash3 of each member. Any order means the same;
//! this one makes the text the same, so that taking over from it changes nothing.

/// The members in that order, as they were put in one after the other; doubles count once.
pub fn listed(members: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut chains: Vec<Vec<(u32, String)>> = vec![Vec::new()];
    let mut count = 0;
    for member in members {
        let hash = murmur(member.as_bytes());
        let at = place(hash, chains.len());
        let Some(chain) = chains.get_mut(at) else { continue };
        if chain.iter().any(|(_, m)| *m == member) {
            continue;
        }
        // The end of a chain is its head.
        chain.push((hash, member));
        count += 1;
        if count / 2 >= chains.len() {
            chains = grown(chains, count);
        }
    }
    chains.into_iter().flat_map(|c| c.into_iter().rev()).map(|(_, m)| m).collect()
}

fn place(hash: u32, size: usize) -> usize {
    hash as usize & (size - 1)
}

fn grown(chains: Vec<Vec<(u32, String)>>, count: usize) -> Vec<Vec<(u32, String)>> {
    let size = (count / 2 + 1).next_power_of_two().max(4);
    let mut out: Vec<Vec<(u32, String)>> = vec![Vec::new(); size];
    for (hash, member) in chains.into_iter().flat_map(|c| c.into_iter().rev()) {
        if let Some(chain) = out.get_mut(place(hash, size)) {
            chain.push((hash, member));
        }
    }
    out
}

/// MurmurHash3 of 32 bits; a last word that is not full is zero-extended, and a zero word does not mix.
fn murmur(bytes: &[u8]) -> u32 {
    let mut hash: u32 = 0;
    for chunk in bytes.chunks(4) {
        let word = chunk.iter().rev().fold(0, |word, b| word << 8 | u32::from(*b));
        hash ^= word.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
        hash = hash.rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
    }
    hash ^= bytes.len() as u32;
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

#[cfg(test)]
mod tests {
    use super::listed;

    #[test]
    fn every_member_is_listed_once() {
        let members: Vec<String> = (0..1000).map(|i| format!("m{}", i % 700)).collect();
        let mut all = listed(members);
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 700);
    }

    #[test]
    fn the_order_is_that_of_the_golden_data() {
        let macs = ["30:54:00:00:00:03", "40:54:00:00:00:03"].map(str::to_string);
        assert_eq!(listed(macs), ["40:54:00:00:00:03", "30:54:00:00:00:03"]);
    }
}
