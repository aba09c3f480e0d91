//! Checks the licences and sources of all dependencies against `deny.toml`.
//!
//! With cargo-deny installed, that is cargo-deny's work. Building it takes longer than all other steps together, so where it is missing, the
//! part of its policy that matters most is checked here: every dependency has an allowed licence and comes from a registry.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::error::Error;
use crate::exec;
use crate::steps::Context;
use crate::tally::Tally;
use crate::workspace::Package;

/// The part of `deny.toml` that is checked here.
#[derive(Debug, Deserialize)]
struct Policy {
    graph: Graph,
    licenses: Licenses,
}

#[derive(Debug, Deserialize)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

/// The step `deny` of `cargo xtask test`.
pub(crate) fn step(context: &Context<'_>) -> Result<Tally, Error> {
    let workspace = context.workspace;
    if exec::capture(&mut workspace.cargo(["deny", "--version"])).is_ok() {
        // Advisories are left out: they change from one day to the next, and a test run must not.
        let mut command = workspace.cargo(["deny", "--locked", "check", "licenses", "bans", "sources"]);
        let status = exec::stream(&mut command, context.log, |_| {})?;
        return Ok(Tally::one(status.success(), || format!("`{}` ({status})", exec::shown(&command))));
    }

    let path = workspace.root().join("deny.toml");
    let text = std::fs::read_to_string(&path).map_err(Error::io(format!("read {}", path.display())))?;
    let policy: Policy = toml::from_str(&text).map_err(|source| Error::Policy { path, source: Box::new(source) })?;
    let mut packages = BTreeMap::new();
    for platform in &policy.graph.targets {
        for package in workspace.packages_for(platform)? {
            packages.insert((package.name.clone(), package.version.clone()), package);
        }
    }
    let mut tally = Tally::default();
    for package in packages.values() {
        if let Some(why) = objection(package, &policy.licenses.allow) {
            tally.fail(format!("{} {}: {why}", package.name, package.version));
        }
    }
    if tally.failed == 0 {
        tally.pass();
    }
    context.log.line(&format!(
        "{} packages, {} of them not allowed by deny.toml (checked without cargo-deny)",
        packages.len(),
        tally.failed
    ));
    Ok(tally)
}

/// Why a package may not be used, if so.
fn objection(package: &Package, allowed: &[String]) -> Option<String> {
    if let Some(source) = &package.source
        && !source.starts_with("registry+")
        && !source.starts_with("sparse+")
    {
        return Some(format!("comes from {source}, not from a registry"));
    }
    let Some(license) = &package.license else {
        return Some("states no licence".into());
    };
    // Older packages write `MIT/Apache-2.0`, which the lax mode takes for OR, as cargo-deny does.
    let expression = match spdx::Expression::parse_mode(license, spdx::ParseMode::LAX) {
        Ok(expression) => expression,
        Err(error) => return Some(format!("`{license}` is not a licence expression: {}", error.reason)),
    };
    let fine = expression.evaluate(|requirement| {
        let name = requirement.to_string();
        allowed.contains(&name)
    });
    (!fine).then(|| format!("licence `{license}` is not allowed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objection_to(license: Option<&str>, source: Option<&str>) -> Option<String> {
        let package =
            serde_json::json!({ "name": "x", "version": "1.0.0", "license": license, "source": source, "targets": [] });
        let package: Package = serde_json::from_value(package).unwrap();
        objection(&package, &["MIT".into(), "Apache-2.0 WITH LLVM-exception".into()])
    }

    #[test]
    fn licences_are_expressions() {
        for fine in ["MIT", "MIT OR GPL-2.0-only", "MIT/Apache-2.0", "Apache-2.0 WITH LLVM-exception"] {
            assert_eq!(objection_to(Some(fine), None), None, "{fine}");
        }
        for bad in ["Apache-2.0", "MIT AND GPL-2.0-only", "No such licence", "GPL-3.0-or-later"] {
            assert!(objection_to(Some(bad), None).is_some(), "{bad}");
        }
        assert!(objection_to(None, None).is_some());
    }

    #[test]
    fn sources_are_registries() {
        assert_eq!(objection_to(Some("MIT"), Some("registry+https://example.org/index")), None);
        assert!(objection_to(Some("MIT"), Some("git+https://example.org/x.git#abc")).is_some());
    }
}
