//! What a full test run consists of. Everything that one may want to change is in the tables of this file.

use std::path::PathBuf;
use std::process::Command;

use crate::deny;
use crate::error::Error;
use crate::exec::{self, Log};
use crate::packages;
use crate::storm;
use crate::tally::Tally;
use crate::vm;
use crate::workspace::Workspace;

/// One step of `cargo xtask test`.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) run: fn(&Context<'_>) -> Result<Tally, Error>,
}

/// What a step may use.
pub(crate) struct Context<'a> {
    pub(crate) workspace: &'a Workspace,
    pub(crate) log: Log,
    pub(crate) keep_going: bool,
}

/// The steps in order: the ones that find most in the least time come first, and what one step compiles the later ones use.
pub(crate) const STEPS: &[Step] = &[
    Step { name: "format", what: "the code is formatted as rustfmt formats it", run: format },
    Step { name: "deny", what: "licences and sources of all dependencies are allowed by deny.toml", run: deny::step },
    Step {
        name: "lints",
        what: "clippy has nothing to say about any target",
        run: |context| {
            let args = ["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"];
            check(context, &mut context.workspace.cargo(args))
        },
    },
    Step {
        name: "docs",
        what: "the documentation builds without a warning",
        run: |context| {
            let mut cargo = context.workspace.cargo(["doc", "--locked", "--workspace", "--no-deps"]);
            check(context, cargo.env("RUSTDOCFLAGS", "-D warnings"))
        },
    },
    Step { name: "tests", what: "all tests, with debug assertions", run: |context| tests(context, &["--workspace"]) },
    Step { name: "release-tests", what: "the heavy tests again, optimized", run: release_tests },
    Step {
        name: "binaries",
        what: "the command-line tool builds as it is shipped",
        run: |context| check(context, &mut build_binaries(context.workspace)),
    },
    Step {
        name: "storm",
        what: "200,000 connections that any thread closes, and servers that are killed: nothing is left, and memory is flat",
        run: storm::step,
    },
    Step {
        name: "vm",
        what: "the tool and the kernel's Soft-RoCE understand each other",
        run: |context| vm::step(context.workspace, context.log, VM_SCRIPTS),
    },
];

/// Debian packages with what tests run, and with the headers that layouts are compared with.
const TEST_PACKAGES: &[&str] = &["gcc", "iproute2", "libibverbs-dev", "tshark"];

/// Debian packages for the kernel test bed: QEMU, and what is copied into the virtual machine.
pub(crate) const VM_PACKAGES: &[&str] = &[
    "qemu-system-x86",
    "busybox-static",
    "kmod",
    "iproute2",
    "ibverbs-providers",
    "ibverbs-utils",
    "rdmacm-utils",
    "tshark",
    // For what is written in C, beside what it is compared with.
    "gcc",
    "librdmacm-dev",
];

/// Which tests of a package run optimized, too.
enum Which {
    All,
    Integration,
}

/// Packages whose tests cover much more in an optimized build.
const RELEASE_TESTS: &[(&str, Which)] = &[("ferroce-sim", Which::All), ("ferroce-soft", Which::Integration)];

/// The scripts of the `vm` step, run in this order in one boot.
pub(crate) const VM_SCRIPTS: &[&str] = &[
    "vm/smoke.sh",
    "vm/pingpong.sh connected",
    "vm/pingpong.sh srq ud",
    "vm/pingpong.sh options loss",
    "vm/cm.sh",
    "vm/rdmacore.sh local soft",
    "vm/rdmacore.sh conformance across",
    "vm/rdmacore.sh perf extended transports watch cache errors faults removal",
    "vm/kcm.sh rping cmatose udaddy mckey cmtime soft refused cases errors removed",
    "vm/kcm.sh storm=20000",
    "vm/storm.sh none 8 500",
    "vm/storm.sh slow 8 300",
];

/// Seconds that each script of the kernel test bed may take. It stops what hangs; on a machine that is busy the longest takes a sixth of it.
pub(crate) const VM_SCRIPT_SECONDS: u64 = 1800;

/// The command that builds the tool as it is shipped.
pub(crate) fn build_binaries(workspace: &Workspace) -> Command {
    workspace.cargo(["build", "--locked", "--release", "--package", "ferroce"])
}

/// Examples that scripts of the kernel test bed run, as package and name. They are built without optimization, as tests are.
const VM_PROGRAMS: &[(&str, &str)] = &[
    ("ferroce-conformance", "rdmacore"),
    ("ferroce-abi", "rxe_faults"),
    ("ferroce-abi", "extended"),
    ("ferroce-cm", "cmcases"),
];

/// The commands that build the programs that scripts run beside the tool, and where they then are.
pub(crate) fn vm_programs(workspace: &Workspace) -> Vec<(Command, PathBuf)> {
    let program = |&(package, name): &(&str, &str)| {
        // Debugging information would be most of the initial RAM disk.
        let args = ["rustc", "--locked", "--package", package, "--example", name, "--", "-C", "strip=debuginfo"];
        (workspace.cargo(args), workspace.target_dir().join("debug/examples").join(name))
    };
    let mut programs: Vec<_> = VM_PROGRAMS.iter().map(program).collect();
    programs.push(storm_rdmacm(workspace));
    programs
}

/// The storm that is written in C, for librdmacm is: the command that builds it, and where it then is.
fn storm_rdmacm(workspace: &Workspace) -> (Command, PathBuf) {
    // The tool is built before it, and the directory with it.
    let program = workspace.target_dir().join("release/storm_rdmacm");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    cc.arg(workspace.root().join("vm/storm_rdmacm.c")).args(["-lrdmacm", "-libverbs", "-lpthread"]);
    (cc, program)
}

/// A step that is one command and one check.
fn check(context: &Context<'_>, command: &mut Command) -> Result<Tally, Error> {
    let status = exec::stream(command, context.log, |_| {})?;
    Ok(Tally::one(status.success(), || format!("`{}` ({status})", exec::shown(command))))
}

/// The fuzzers are a workspace of their own.
fn format(context: &Context<'_>) -> Result<Tally, Error> {
    let mut tally = check(context, &mut context.workspace.cargo(["fmt", "--all", "--check"]))?;
    let mut fuzzers = context.workspace.cargo(["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"]);
    tally.add(check(context, &mut fuzzers)?);
    Ok(tally)
}

fn tests(context: &Context<'_>, args: &[&str]) -> Result<Tally, Error> {
    packages::require(TEST_PACKAGES, context.log)?;
    let mut command = context.workspace.cargo(["test", "--locked"]);
    command.args(args);
    if context.keep_going {
        command.arg("--no-fail-fast");
    }
    let mut tally = Tally::default();
    let status = exec::stream(&mut command, context.log, |line| tally.libtest_line(line))?;
    if !status.success() && tally.failed == 0 {
        // It did not compile, or a test program died before it could count.
        tally.fail(format!("`{}` ({status})", exec::shown(&command)));
    }
    Ok(tally)
}

fn release_tests(context: &Context<'_>) -> Result<Tally, Error> {
    let mut tally = Tally::default();
    for (package, which) in RELEASE_TESTS {
        let Some(integration) = context.workspace.integration_tests(package) else {
            tally.fail(format!("the workspace has no package {package}"));
            continue;
        };
        let mut args = vec!["--profile", "optimized-tests", "--package", package];
        if matches!(which, Which::Integration) {
            if integration.is_empty() {
                context.log.line(&format!("{package} has no integration tests"));
                continue;
            }
            for name in integration {
                args.extend(["--test", name]);
            }
        }
        tally.add(tests(context, &args)?);
        if tally.failed > 0 && !context.keep_going {
            break;
        }
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_name_things_that_exist() {
        let workspace = Workspace::locate().unwrap();
        for (package, _) in RELEASE_TESTS {
            assert!(workspace.integration_tests(package).is_some(), "{package}");
        }
        for script in VM_SCRIPTS {
            let file = script.split_whitespace().next().unwrap();
            assert!(workspace.root().join(file).is_file(), "{file}");
        }
    }

    /// Of a script whose parts are named here, each part is.
    #[test]
    fn no_part_of_a_script_is_forgotten() {
        let workspace = Workspace::locate().unwrap();
        let files: std::collections::BTreeSet<&str> =
            VM_SCRIPTS.iter().filter_map(|script| script.split_whitespace().next()).collect();
        let mut parts = 0;
        for file in files {
            let of_it = || VM_SCRIPTS.iter().filter_map(|script| script.strip_prefix(file)).map(str::trim);
            if of_it().any(str::is_empty) {
                continue;
            }
            let named: Vec<&str> =
                of_it().flat_map(str::split_whitespace).map(|word| word.split('=').next().unwrap_or(word)).collect();
            let text = std::fs::read_to_string(workspace.root().join(file)).unwrap();
            for part in text.lines().filter_map(|line| line.strip_prefix("part_")?.split_once("()")) {
                assert!(named.contains(&part.0), "{file}: nobody runs {}", part.0);
                parts += 1;
            }
        }
        assert!(parts > 10, "the scripts have parts");
    }
}
