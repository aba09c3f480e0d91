//! The kernel test bed: a stock Debian kernel with Soft-RoCE under QEMU, without KVM, and scripts that run inside.
//!
//! Inside, `rxe0` sits on `v0` (10.77.0.1 and fd77::1, the initial network namespace). The other end of the cable, `v1` (10.77.0.2 and
//! fd77::2), is in the namespace `soft`, where a user-space RoCEv2 device can bind UDP port 4791 itself.
//!
//! | module | the question it answers |
//! |---|---|
//! | `kernel` | which kernel, and where are its modules? |
//! | `libraries` | which libraries does a program need? |
//! | `cpio` | how is an initial RAM disk written? |
//! | `base` | the part of the RAM disk that stays the same from run to run |
//! | `overlay` | the part that differs: scripts, files, the tool itself |
//! | `script` | which script runs, with which arguments, for how long? |
//! | `protocol` | what does the machine tell about its scripts? |
//! | `machine` | runs QEMU and enforces deadlines |
//! | `capture` | what does tshark think of packets that scripts have captured? |
//! | `console` | did the kernel complain? |
//! | `verdict` | what does all that amount to? |

mod base;
mod capture;
mod console;
mod cpio;
mod kernel;
mod libraries;
mod machine;
mod overlay;
mod protocol;
mod script;
mod verdict;

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::cli::VmArgs;
use crate::error::Error;
use crate::exec::{self, Log};
use crate::packages;
use crate::steps::{self, VM_PACKAGES, VM_SCRIPT_SECONDS, VM_SCRIPTS};
use crate::tally::Tally;
use crate::workspace::Workspace;

use script::Script;

/// What to run in one boot.
struct Job {
    scripts: Vec<Script>,
    files: Vec<PathBuf>,
    keep: bool,
}

/// The command `cargo xtask vm`; `false` if anything inside failed.
pub(crate) fn command(workspace: &Workspace, args: &VmArgs) -> Result<bool, Error> {
    let scripts = if args.scripts.is_empty() {
        own_scripts(workspace, VM_SCRIPTS, args.timeout)?
    } else {
        // What a person types is relative to where they are.
        let here = std::env::current_dir().map_err(Error::io("find the current directory"))?;
        Script::parse_all(&args.scripts, &here, args.timeout)?
    };
    let job = Job { scripts, files: args.files.clone(), keep: args.keep };
    let tally = run(workspace, Log::Stdout, &job)?;
    println!();
    for failure in &tally.failures {
        println!("failed: {failure}");
    }
    println!("{} passed, {} failed", tally.passed, tally.failed);
    Ok(tally.failed == 0)
}

/// The step `vm` of `cargo xtask test`.
pub(crate) fn step(workspace: &Workspace, log: Log, scripts: &[&str]) -> Result<Tally, Error> {
    let job = Job { scripts: own_scripts(workspace, scripts, VM_SCRIPT_SECONDS)?, files: Vec::new(), keep: false };
    run(workspace, log, &job)
}

fn own_scripts(workspace: &Workspace, scripts: &[&str], timeout: u64) -> Result<Vec<Script>, Error> {
    let scripts: Vec<String> = scripts.iter().map(|&script| script.to_owned()).collect();
    Script::parse_all(&scripts, workspace.root(), timeout)
}

/// Has everything at hand that may have to be fetched over the network.
pub(crate) fn prepare(log: Log) -> Result<(), Error> {
    prepare_parts(log).map(drop)
}

fn prepare_parts(log: Log) -> Result<(kernel::Kernel, PathBuf), Error> {
    if !cfg!(target_arch = "x86_64") {
        return Err(Error::Architecture(std::env::consts::ARCH));
    }
    packages::require(VM_PACKAGES, log)?;
    let cache = cache_dir()?;
    let kernel = kernel::locate(&cache, log)?;
    let base = base::locate(&cache, &kernel, log)?;
    Ok((kernel, base))
}

/// Where kernels and initial RAM disks are kept between runs.
fn cache_dir() -> Result<PathBuf, Error> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let dir = set("FERROCE_VM_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("ferroce-vm")))
        .or_else(|| set("HOME").map(|dir| dir.join(".cache/ferroce-vm")))
        .ok_or_else(|| Error::NotFound { what: "a directory for its cache: set FERROCE_VM_CACHE".into() })?;
    std::fs::create_dir_all(&dir).map_err(Error::io(format!("create {}", dir.display())))?;
    Ok(dir)
}

fn run(workspace: &Workspace, log: Log, job: &Job) -> Result<Tally, Error> {
    let start = Instant::now();
    // Building needs some of them.
    packages::require(VM_PACKAGES, log)?;
    let mut files = job.files.clone();
    let mut builds = vec![(steps::build_binaries(workspace), "the tool")];
    for (build, file) in steps::vm_programs(workspace) {
        builds.push((build, "a program of the test bed"));
        files.push(file);
    }
    for (mut build, what) in builds {
        let status = exec::stream(&mut build, log, |_| {})?;
        if !status.success() {
            let mut tally = Tally::default();
            tally.fail(format!("{what} does not build"));
            return Ok(tally);
        }
    }
    let tool = workspace.target_dir().join("release/ferroce");

    let (kernel, base) = prepare_parts(log)?;
    let (dir, guard) = run_dir(workspace, job.keep)?;
    let nonce = protocol::Nonce::fresh();
    let image = dir.join("initrd");
    overlay::write(
        &image,
        &base,
        &overlay::Content {
            guest: &workspace.root().join("vm"),
            nonce: &nonce,
            tool: &tool,
            files: &files,
            scripts: &job.scripts,
        },
    )?;
    log.line(&format!(
        "kernel {}, initial RAM disk of {} MiB, prepared in {:.1} s",
        kernel.release(),
        std::fs::metadata(&image).map_or(0, |meta| meta.len() >> 20),
        start.elapsed().as_secs_f64()
    ));
    let machine = machine::Machine {
        kernel: &kernel.image(),
        initrd: &image,
        console: &dir.join("console.log"),
        output: &dir.join("output.log"),
        log,
    };
    let record = machine.run(&nonce, &job.scripts)?;
    let mut tally = verdict::judge(&record, &job.scripts, log);
    tally.add(capture::judge(&record.captures, &dir)?);
    if guard.is_none() {
        log.line(&format!("kept {}", dir.display()));
    }
    Ok(tally)
}

/// A directory for one run, and what removes it at the end unless it is to be kept.
fn run_dir(workspace: &Workspace, keep: bool) -> Result<(PathBuf, Option<tempfile::TempDir>), Error> {
    let parent: &Path = &workspace.target_dir().join("vm");
    std::fs::create_dir_all(parent).map_err(Error::io(format!("create {}", parent.display())))?;
    let dir = tempfile::Builder::new()
        .prefix("run-")
        .tempdir_in(parent)
        .map_err(Error::io(format!("create a directory in {}", parent.display())))?;
    if keep { Ok((dir.keep(), None)) } else { Ok((dir.path().to_path_buf(), Some(dir))) }
}
