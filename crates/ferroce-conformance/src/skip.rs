/// Cases that a device cannot pass, each with the reason why that is not a fault.
#[derive(Clone, Debug, Default)]
pub struct SkipList {
    entries: Vec<Skip>,
}

#[derive(Clone, Debug)]
struct Skip {
    pattern: String,
    reason: String,
}

impl SkipList {
    /// An empty list: the device must pass everything.
    pub fn new() -> Self {
        Self::default()
    }

    /// Leaves out the cases whose name matches `pattern` (see [`matches()`]) because of `reason`, which the report repeats.
    #[must_use]
    pub fn skip(mut self, pattern: &str, reason: &str) -> Self {
        self.entries.push(Skip { pattern: pattern.into(), reason: reason.into() });
        self
    }

    /// Why the case `name` is left out, if it is.
    pub fn reason(&self, name: &str) -> Option<&str> {
        self.entries.iter().find(|skip| matches(&skip.pattern, name)).map(|skip| skip.reason.as_str())
    }

    /// The patterns that match none of `names`: they are out of date or misspelt.
    pub fn unused<'a>(&self, names: impl Iterator<Item = &'a str> + Clone) -> Vec<String> {
        let unused = |skip: &&Skip| !names.clone().any(|name| matches(&skip.pattern, name));
        self.entries.iter().filter(unused).map(|skip| skip.pattern.clone()).collect()
    }
}

/// Whether `name` matches `pattern`, in which `*` stands for any text, `/` included.
pub fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => name.strip_prefix(head).is_some_and(|rest| {
            // The empty rest included: `*` may stand for all of it.
            (0..=rest.len()).filter(|&at| rest.is_char_boundary(at)).any(|at| matches(tail, &rest[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        assert!(matches("a/b", "a/b"));
        assert!(!matches("a/b", "a/bc"));
        assert!(matches("a/*", "a/b/c"));
        assert!(matches("*c", "a/b/c"));
        assert!(matches("a*b*c", "a-b-b-c"));
        assert!(!matches("a*b*c", "a-c-b"));
        assert!(matches("*", ""));
        assert!(!matches("", "a"));
    }

    #[test]
    fn entries_that_match_nothing_are_named() {
        let list = SkipList::new().skip("a/*", "why").skip("z", "because");
        assert_eq!(list.reason("a/b"), Some("why"));
        assert_eq!(list.reason("b"), None);
        assert_eq!(list.unused(["a/b", "c"].into_iter()), ["z"]);
    }
}
