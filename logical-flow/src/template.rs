//! Template variables (ovn-nb(5), table Chassis_Template_Var): `^NAME` stands for a text that each chassis has its own of.

use std::borrow::Cow;

/// A text with the values of its variables in their places. Inside quotes `^` is a character like others. A variable
/// without a value stays as it is, so that whoever parses the text names it.
pub fn expand<'t>(text: &'t str, value: &mut dyn FnMut(&str) -> Option<String>) -> Cow<'t, str> {
    if !text.contains('^') {
        return Cow::Borrowed(text);
    }
    let (mut out, mut quoted, mut rest) = (String::with_capacity(text.len()), false, text);
    while let Some(c) = rest.chars().next() {
        let tail = &rest[c.len_utf8()..];
        let len = if c == '^' && !quoted { name_len(tail) } else { 0 };
        if let Some(v) = tail.get(..len).filter(|n| !n.is_empty()).and_then(&mut *value) {
            out.push_str(&v);
            rest = &tail[len..];
            continue;
        }
        out.push(c);
        rest = tail;
        if c == '\\' && quoted {
            // Whatever follows is no closing quote.
            let escaped = rest.chars().next();
            out.extend(escaped);
            rest = &rest[escaped.map_or(0, char::len_utf8)..];
        }
        quoted ^= c == '"';
    }
    Cow::Owned(out)
}

/// Whether a text has variables that have not been given a value.
pub fn is_open(text: &str) -> bool {
    let mut open = false;
    expand(text, &mut |_| {
        open = true;
        None
    });
    open
}

/// The length of a variable's name: letters, digits, `_` and single dots inside.
fn name_len(s: &str) -> usize {
    let b = s.as_bytes();
    let mut n = 0;
    while let Some(&c) = b.get(n) {
        let inner_dot = c == b'.' && b.get(n + 1).is_some_and(|d| d.is_ascii_alphanumeric() || *d == b'_');
        if c.is_ascii_alphanumeric() || c == b'_' || inner_dot {
            n += 1;
        } else {
            break;
        }
    }
    n
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_texts_are_known() {
        assert!(is_open("ip4.dst == ^VIP && tcp") && !is_open("inport == \"^VIP\"") && !is_open("ip4"));
    }

    #[test]
    fn variables_are_replaced_outside_quotes() {
        let mut asked = Vec::new();
        let mut value = |name: &str| {
            asked.push(name.to_string());
            match name {
                "vip" => Some("10.0.0.1".to_string()),
                "back.ends_4" => Some("42.42.42.2:80,42.42.42.3:80".to_string()),
                _ => None,
            }
        };
        assert_eq!(expand("ip4.dst == ^vip && tcp", &mut value), "ip4.dst == 10.0.0.1 && tcp");
        assert_eq!(
            expand("ct_lb_mark(backends=^back.ends_4); log(name=\"^vip \\\"^vip\");^vip", &mut value),
            "ct_lb_mark(backends=42.42.42.2:80,42.42.42.3:80); log(name=\"^vip \\\"^vip\");10.0.0.1"
        );
        assert_eq!(expand("^other ^ é^", &mut value), "^other ^ é^");
        assert_eq!(asked, ["vip", "back.ends_4", "vip", "other"]);
        assert!(matches!(expand("ip4", &mut |_| None), Cow::Borrowed(_)));
    }
}
