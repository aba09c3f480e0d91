//! A network namespace of its own for everything that is measured: a host without neighbours, whose ports nobody else uses.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::error::Error;
use crate::exec::{self, Log};
use crate::packages;

/// Starts this program again in a new network namespace, with `--isolated` added, in the place of this process. Returns if that is not permitted here.
pub(super) fn enter(log: Log) -> Result<(), Error> {
    if !exec_succeeds(&mut unshare(["true"])) {
        log.line("measuring in the network namespace of the machine: a new one is not permitted");
        return Ok(());
    }
    let program = std::env::current_exe().map_err(Error::io("find this program"))?;
    let mut command = unshare(["sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
    command.arg(program).args(std::env::args_os().skip(1)).arg("--isolated");
    let source = command.exec();
    Err(exec::spawn_error(&command)(source))
}

/// A command in a new network namespace, which takes root or a user namespace.
fn unshare<const N: usize>(args: [&str; N]) -> Command {
    let mut command = Command::new("unshare");
    command.arg("--net");
    if !packages::is_root() {
        command.arg("--map-root-user");
    }
    command.arg("--").args(args);
    command
}

fn exec_succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
