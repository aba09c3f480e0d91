//! Scripts that run inside the virtual machine.

use std::path::{Path, PathBuf};

use crate::error::Error;

/// One script with its arguments and its time limit.
#[derive(Debug)]
pub(super) struct Script {
    shown: String,
    file: PathBuf,
    args: Vec<String>,
    seconds: u64,
}

impl Script {
    /// Reads `FILE [ARG...]`, separated by white space; a relative FILE is below `directory`.
    pub(super) fn parse(text: &str, directory: &Path, seconds: u64) -> Result<Self, Error> {
        let bad = |why: String| Error::Script { script: text.to_owned(), why };
        let mut words = text.split_whitespace();
        let file = directory.join(words.next().ok_or_else(|| bad("it is empty".into()))?);
        if !file.is_file() {
            return Err(bad(format!("there is no file {}", file.display())));
        }
        let args: Vec<String> = words.map(str::to_owned).collect();
        // The plan is read by a shell's `read`.
        let plain = |c: char| c.is_ascii_graphic() && !"'\"\\`$".contains(c);
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if !name.chars().chain(args.iter().flat_map(|arg| arg.chars())).all(plain) {
            return Err(bad("names and arguments may have neither quotes nor blanks".into()));
        }
        Ok(Self { shown: words_joined(&name, &args), file, args, seconds })
    }

    pub(super) fn parse_all(texts: &[String], directory: &Path, seconds: u64) -> Result<Vec<Self>, Error> {
        let scripts = texts.iter().map(|text| Self::parse(text, directory, seconds)).collect::<Result<Vec<_>, _>>()?;
        // Two different files of one name would land in the same place.
        for script in &scripts {
            if let Some(other) =
                scripts.iter().find(|other| other.place() == script.place() && other.file != script.file)
            {
                return Err(Error::Script {
                    script: script.shown.clone(),
                    why: format!("{} and {} have the same name", script.file.display(), other.file.display()),
                });
            }
        }
        Ok(scripts)
    }

    /// The name and the arguments, for people.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    pub(super) fn seconds(&self) -> u64 {
        self.seconds
    }

    /// Where it is inside: beside the other scripts, so that it can use `lib.sh`.
    pub(super) fn place(&self) -> String {
        format!("vm/{}", self.file.file_name().unwrap_or_default().to_string_lossy())
    }
}

fn words_joined(name: &str, args: &[String]) -> String {
    let mut text = name.to_owned();
    for arg in args {
        text.push(' ');
        text.push_str(arg);
    }
    text
}

/// What the first process reads: one line for each script, with its time limit, its place and its arguments.
pub(super) fn plan(scripts: &[Script]) -> String {
    scripts
        .iter()
        .map(|script| format!("{} /{}\n", script.seconds, words_joined(&script.place(), &script.args)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_a_file_and_arguments() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a.sh"), "").unwrap();
        std::fs::create_dir(directory.path().join("b")).unwrap();
        std::fs::write(directory.path().join("b/a.sh"), "").unwrap();
        let parse = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
            Script::parse_all(&texts, directory.path(), 7)
        };

        let scripts = parse(&["a.sh one two", "a.sh"]).unwrap();
        assert_eq!(scripts[0].shown(), "a.sh one two");
        assert_eq!(plan(&scripts), "7 /vm/a.sh one two\n7 /vm/a.sh\n");

        for bad in [&["c.sh"][..], &[""], &["a.sh $x"], &["a.sh", "b/a.sh"]] {
            assert!(matches!(parse(bad), Err(Error::Script { .. })), "{bad:?}");
        }
    }
}
