//! Address sets (ovn-nb(5), `NB_Global:options:ic-as-adv` and `ic-as-learn`).

use super::{V, zone_of};
use crate::model::{LEARNED_SET, Read};
use crate::output::{Key, Value};
use ovn_schema::{Set, Str, options::flag};
use std::collections::BTreeMap;

/// Puts out address sets of both directions. One that several zones advertise is learned with the addresses of all; one
/// that this zone has itself is not learned.
pub fn sets(v: &mut V<'_>) {
    let Some(zone) = zone_of(v) else { return };
    if zone.flag("ic-as-adv") {
        for set in v.read(Read::AdvertisedSets).sb.advertised_sets() {
            v.emit(Key::IcAddressSet(zone.row, set.name.clone()), Value::Addresses(set.addresses.clone()));
        }
    }
    if !zone.flag("ic-as-learn") {
        return;
    }
    let mut learned: BTreeMap<&Str, Set<Str>> = BTreeMap::new();
    let rows = v.read(Read::IcAddressSets).icsb.db.address_set.values();
    for set in rows.filter(|s| s.availability_zone != zone.row) {
        learned.entry(&set.name).or_default().extend(set.addresses.iter().cloned());
    }
    for (name, addresses) in learned {
        let mut same = v.read(Read::AddressSetNamed(name.clone())).nb.sets_named(name);
        if same.all(|s| flag(&s.external_ids, LEARNED_SET)) {
            v.emit(Key::AddressSet(name.clone()), Value::Addresses(addresses));
        }
    }
}
