//! The part of the initial RAM disk that differs from run to run: the first process, the scripts, the tool, files of the caller.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::error::Error;

use super::base;
use super::cpio::Archive;
use super::libraries;
use super::protocol::Nonce;
use super::script::{self, Script};

pub(super) struct Content<'a> {
    /// The directory `vm` of this repository.
    pub(super) guest: &'a Path,
    pub(super) nonce: &'a Nonce,
    /// The command-line tool.
    pub(super) tool: &'a Path,
    /// Go to `/payload`.
    pub(super) files: &'a [PathBuf],
    pub(super) scripts: &'a [Script],
}

/// Writes the whole RAM disk for one run: a copy of `base`, and the rest after it.
pub(super) fn write(image: &Path, base: &Path, content: &Content<'_>) -> Result<(), Error> {
    std::fs::copy(base, image).map_err(Error::io(format!("copy {} to {}", base.display(), image.display())))?;
    let mut out = File::options().write(true).open(image).map_err(Error::io(format!("open {}", image.display())))?;
    out.seek(SeekFrom::End(0)).map_err(Error::io(format!("append to {}", image.display())))?;
    let mut archive = Archive::new(BufWriter::new(out));
    let append = || format!("append to {}", image.display());
    add_program(&mut archive, "usr/bin/ferroce", content.tool)?;
    for file in content.files {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        add_program(&mut archive, &format!("payload/{name}"), file)?;
    }
    for file in shell_files(content.guest)? {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        add(&mut archive, &format!("vm/{name}"), &file)?;
    }
    for script in content.scripts {
        add(&mut archive, &script.place(), script.file())?;
    }
    archive.file("vm/plan", 0o644, script::plan(content.scripts).as_bytes()).map_err(Error::io(append()))?;
    archive.file("vm/nonce", 0o644, content.nonce.as_str().as_bytes()).map_err(Error::io(append()))?;
    let init = content.guest.join("init.sh");
    let init = std::fs::read(&init).map_err(Error::io(format!("read {}", init.display())))?;
    // The kernel starts it, whatever permissions it has here.
    archive.file("init", 0o755, &init).map_err(Error::io(append()))?;
    archive.finish().map_err(Error::io(append()))?;
    Ok(())
}

fn add<W: io::Write>(archive: &mut Archive<W>, place: &str, file: &Path) -> Result<(), Error> {
    archive.copy(place, file).map_err(Error::io(format!("copy {} into the virtual machine", file.display())))
}

/// Adds a file and, if it is a program, its libraries.
fn add_program<W: io::Write>(archive: &mut Archive<W>, place: &str, file: &Path) -> Result<(), Error> {
    add(archive, place, file)?;
    for library in libraries::of(file)? {
        add(archive, &base::place(&library), &library)?;
    }
    Ok(())
}

fn shell_files(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
        .map_err(Error::io(format!("read {}", directory.display())))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "sh"))
        .collect();
    files.sort();
    Ok(files)
}
