//! The shared libraries that a program needs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use crate::exec;

/// Libraries of a program or a library, with the dynamic loader; none if it is static or a script.
pub(super) fn of(file: &Path) -> Result<BTreeSet<PathBuf>, Error> {
    let mut command = Command::new("ldd");
    command.arg(file);
    let text = match exec::capture(&mut command) {
        Ok(text) => text,
        // "not a dynamic executable"
        Err(Error::Failed { .. }) => return Ok(BTreeSet::new()),
        Err(error) => return Err(error),
    };
    parse(&text).map_err(|library| Error::NotFound { what: format!("the library {library} for {}", file.display()) })
}

/// `ldd` prints `NAME => PATH (ADDRESS)`, `PATH (ADDRESS)` for the loader, `NAME (ADDRESS)` for what the kernel provides, `NAME => not found`.
fn parse(text: &str) -> Result<BTreeSet<PathBuf>, String> {
    let mut libraries = BTreeSet::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        let path = match words.next() {
            Some("=>") => words.next().unwrap_or_default(),
            _ => first,
        };
        if path == "not" {
            return Err(first.to_owned());
        }
        if path.starts_with('/') {
            libraries.insert(PathBuf::from(path));
        }
    }
    Ok(libraries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_ldd_prints() {
        let text = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x2)\n\t/lib64/ld.so (0x3)\n";
        let libraries: Vec<PathBuf> = parse(text).unwrap().into_iter().collect();
        assert_eq!(libraries, [Path::new("/lib/x/libc.so.6"), Path::new("/lib64/ld.so")]);
        assert_eq!(parse("\tstatically linked\n"), Ok(BTreeSet::new()));
        assert_eq!(parse("\tlibx.so.1 => not found\n"), Err("libx.so.1".into()));
    }
}
