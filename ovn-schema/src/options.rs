//! Options: the maps of text to text in which OVN's and Open vSwitch's databases keep most settings.

use crate::{Map, Str};
use std::borrow::Borrow;

/// A setting that is on or off, as OVN and Open vSwitch read it: what is off by default is on where the value says
/// `true`, what is on by default is off where it says `false`, in any case of letters. Any other value is the default.
pub fn bool<K: Borrow<str> + Ord>(options: &Map<K, Str>, key: &str, default: bool) -> bool {
    options.get(key).map_or(default, |value| is_on(value, default))
}

/// The same for a value that is there.
pub fn is_on(value: &str, default: bool) -> bool {
    if default { !value.eq_ignore_ascii_case("false") } else { value.eq_ignore_ascii_case("true") }
}

/// Whether an option is set to true.
pub fn flag(options: &Map<Str, Str>, key: &str) -> bool {
    bool(options, key, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_opposite_of_the_default_counts() {
        let options: Map<Str, Str> =
            [("a", "TRUE"), ("b", "False"), ("c", "yes"), ("d", "")].map(|(k, v)| (k.into(), v.into())).into();
        let read = |default| ["a", "b", "c", "d", "e"].map(|key| bool(&options, key, default));
        assert_eq!(read(false), [true, false, false, false, false]);
        assert_eq!(read(true), [true, false, true, true, true]);
    }
}
