//! Where the workspace is and what is in it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::error::Error;
use crate::exec;

#[derive(Debug)]
pub(crate) struct Workspace {
    root: PathBuf,
    cargo: OsString,
    metadata: Metadata,
}

/// The part of `cargo metadata` that is used here.
#[derive(Debug, Deserialize)]
struct Metadata {
    target_directory: PathBuf,
    packages: Vec<Package>,
}

/// One package, of this workspace or a dependency.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    /// An SPDX expression, as the package states it.
    pub(crate) license: Option<String>,
    /// Where it comes from; nothing for a path in the workspace.
    pub(crate) source: Option<String>,
    targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

impl Workspace {
    /// Finds the workspace that this program was built from.
    pub(crate) fn locate() -> Result<Self, Error> {
        // `cargo run` sets both; they are missing only when the binary is started by hand.
        let manifest_dir = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let root = manifest_dir
            .parent()
            .map(Path::to_path_buf)
            .ok_or_else(|| Error::NotFound { what: format!("the directory above {}", manifest_dir.display()) })?;
        let metadata = metadata(&root, &cargo, &["--no-deps"])?;
        Ok(Self { root, cargo, metadata })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn target_dir(&self) -> &Path {
        &self.metadata.target_directory
    }

    /// A cargo command that runs at the root of the workspace.
    pub(crate) fn cargo<I: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Command {
        let mut command = Command::new(&self.cargo);
        command.args(args).current_dir(&self.root);
        command
    }

    /// Names of the integration tests of a package of this workspace; `None` if it has no such package.
    pub(crate) fn integration_tests(&self, package: &str) -> Option<Vec<&str>> {
        let package = self.metadata.packages.iter().find(|p| p.name == package)?;
        Some(
            package
                .targets
                .iter()
                .filter(|target| target.kind.iter().any(|kind| kind == "test"))
                .map(|target| target.name.as_str())
                .collect(),
        )
    }

    /// All packages, dependencies included, that a build for one target platform uses.
    pub(crate) fn packages_for(&self, platform: &str) -> Result<Vec<Package>, Error> {
        Ok(metadata(&self.root, &self.cargo, &["--locked", "--filter-platform", platform])?.packages)
    }
}

fn metadata(root: &Path, cargo: &OsString, args: &[&str]) -> Result<Metadata, Error> {
    let mut command = Command::new(cargo);
    command.args(["metadata", "--format-version", "1"]).args(args).current_dir(root);
    let text = exec::capture(&mut command)?;
    serde_json::from_str(&text)
        .map_err(|error| Error::Output { command: exec::shown(&command), why: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_this_workspace() {
        let workspace = Workspace::locate().unwrap();
        assert!(workspace.root().join("xtask/Cargo.toml").is_file());
        assert_eq!(workspace.integration_tests("xtask"), Some(vec![]));
        assert_eq!(workspace.integration_tests("no-such-package"), None);
    }
}
