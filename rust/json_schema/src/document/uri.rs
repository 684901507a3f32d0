//! References against a base, as RFC 3986 section 5.2 resolves them. Cost: the length of both.

struct Parts<'a> {
    scheme: Option<&'a str>,
    authority: Option<&'a str>,
    path: &'a str,
    query: Option<&'a str>,
    fragment: Option<&'a str>,
}

fn split(text: &str) -> Parts<'_> {
    let (text, fragment) = match text.split_once('#') {
        Some((text, fragment)) => (text, Some(fragment)),
        None => (text, None),
    };
    let (text, query) = match text.split_once('?') {
        Some((text, query)) => (text, Some(query)),
        None => (text, None),
    };
    let (scheme, text) = match text.split_once(':') {
        Some((scheme, rest)) if !scheme.is_empty() && !scheme.contains('/') => (Some(scheme), rest),
        _ => (None, text),
    };
    let (authority, path) = match text.strip_prefix("//") {
        Some(rest) => {
            let end = rest.find('/').unwrap_or(rest.len());
            (Some(&rest[..end]), &rest[end..])
        }
        None => (None, text),
    };
    Parts { scheme, authority, path, query, fragment }
}

fn without_dots(path: &str) -> String {
    let mut out: Vec<&str> = Vec::new();
    let steps: Vec<&str> = path.split('/').collect();
    for (at, step) in steps.iter().enumerate() {
        let last = at + 1 == steps.len();
        match *step {
            "." => {
                if last {
                    out.push("");
                }
            }
            ".." => {
                if out.len() > 1 || out.first().is_some_and(|first| !first.is_empty()) {
                    out.pop();
                }
                if last {
                    out.push("");
                }
            }
            step => out.push(step),
        }
    }
    out.join("/")
}

/// The reference made absolute.
pub(crate) fn resolve(base: &str, reference: &str) -> String {
    let (base, reference) = (split(base), split(reference));
    let (scheme, authority, path, query);
    if reference.scheme.is_some() {
        (scheme, authority, query) = (reference.scheme, reference.authority, reference.query);
        path = without_dots(reference.path);
    } else if reference.authority.is_some() {
        (scheme, authority, query) = (base.scheme, reference.authority, reference.query);
        path = without_dots(reference.path);
    } else {
        (scheme, authority) = (base.scheme, base.authority);
        if reference.path.is_empty() {
            path = base.path.to_owned();
            query = reference.query.or(base.query);
        } else {
            query = reference.query;
            path = if reference.path.starts_with('/') {
                without_dots(reference.path)
            } else if base.authority.is_some() && base.path.is_empty() {
                without_dots(&format!("/{}", reference.path))
            } else {
                let folder = base.path.rfind('/').map_or("", |end| &base.path[..=end]);
                without_dots(&format!("{folder}{}", reference.path))
            };
        }
    }
    let mut out = String::new();
    if let Some(scheme) = scheme {
        out.push_str(&scheme.to_ascii_lowercase());
        out.push(':');
    }
    if let Some(authority) = authority {
        out.push_str("//");
        out.push_str(&authority.to_ascii_lowercase());
    }
    out.push_str(&path);
    if let Some(query) = query {
        out.push('?');
        out.push_str(query);
    }
    if let Some(fragment) = reference.fragment {
        out.push('#');
        out.push_str(fragment);
    }
    out
}

/// `%7E` as `~`, and so on; none if that is no text.
pub(crate) fn percent_decoded(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'%' {
            let digits = text.get(at + 1..at + 3)?;
            out.push(u8::from_str_radix(digits, 16).ok()?);
            at += 3;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_rfc() {
        let base = "http://a/b/c/d;p?q";
        for (reference, expected) in [
            ("g:h", "g:h"),
            ("g", "http://a/b/c/g"),
            ("./g", "http://a/b/c/g"),
            ("g/", "http://a/b/c/g/"),
            ("/g", "http://a/g"),
            ("//g", "http://g"),
            ("?y", "http://a/b/c/d;p?y"),
            ("g?y", "http://a/b/c/g?y"),
            ("#s", "http://a/b/c/d;p?q#s"),
            ("", "http://a/b/c/d;p?q"),
            (".", "http://a/b/c/"),
            ("..", "http://a/b/"),
            ("../g", "http://a/b/g"),
            ("../../g", "http://a/g"),
            ("../../../g", "http://a/g"),
        ] {
            assert_eq!(resolve(base, reference), expected, "{reference}");
        }
        assert_eq!(resolve("urn:uuid:1", "#x"), "urn:uuid:1#x");
        assert_eq!(percent_decoded("a%25b").as_deref(), Some("a%b"));
        assert_eq!(percent_decoded("%zz"), None);
    }
}
