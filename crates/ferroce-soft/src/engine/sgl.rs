//! Copies between packets and the memory that scatter/gather lists name.

use super::mr::{KeyError, MrLookup};
use super::payload::{GrantName, Payload};
use ferroce_verbs::{Access, Sge};

/// Why a payload did not reach its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScatterError {
    /// The list names memory that may not be written.
    Key,
    /// The payload is not to be had.
    Lost,
}

impl From<KeyError> for ScatterError {
    fn from(KeyError: KeyError) -> Self {
        Self::Key
    }
}

/// Fills `out` with what lies `offset` bytes into the list.
#[inline]
pub(crate) fn gather(mrs: &MrLookup<'_>, pd: u32, sges: &[Sge], offset: u64, out: &mut [u8]) -> Result<(), KeyError> {
    if let [sge] = sges {
        let addr = sge.addr.wrapping_add(offset);
        return mrs
            .with(sge.lkey, pd, addr, out.len() as u64, Access::empty(), |region, at| region.read(at, out).is_ok())
            .and_then(|ok| if ok { Ok(()) } else { Err(KeyError) });
    }
    let mut out = out;
    walk(sges, offset, out.len(), |sge, addr, len| {
        let (part, rest) = std::mem::take(&mut out).split_at_mut(len);
        out = rest;
        match mrs.with(sge.lkey, pd, addr, len as u64, Access::empty(), |region, at| region.read(at, part).is_ok()) {
            Ok(true) => Ok(()),
            _ => Err(KeyError),
        }
    })
}

/// Where the `len` bytes are that lie `offset` bytes into the list, and what says that they may be read; `None` if they are not
/// in one piece, or may not be.
pub(crate) fn locate(mrs: &MrLookup<'_>, pd: u32, sges: &[Sge], offset: u64, len: u32) -> Option<(u64, GrantName)> {
    let mut offset = offset;
    for sge in sges {
        let length = u64::from(sge.length);
        if offset < length {
            let addr = sge.addr.wrapping_add(offset);
            let whole = u64::from(len) <= length - offset;
            return whole
                .then(|| mrs.grant(sge.lkey, pd, addr, len.into(), Access::empty()).ok())
                .flatten()
                .map(|grant| (addr, grant));
        }
        offset -= length;
    }
    None
}

/// Writes `payload` to what lies `offset` bytes into the list. The caller knows that it fits.
#[inline]
pub(crate) fn scatter(
    mrs: &MrLookup<'_>,
    pd: u32,
    sges: &[Sge],
    offset: u64,
    payload: Payload<'_>,
) -> Result<(), ScatterError> {
    let mut payload = payload;
    walk(sges, offset, payload.len(), |sge, addr, len| {
        let (part, rest) = payload.split_at(len);
        payload = rest;
        match mrs.with(sge.lkey, pd, addr, len as u64, Access::LOCAL_WRITE, |region, at| part.copy_to(region, at))? {
            true => Ok(()),
            false => Err(ScatterError::Lost),
        }
    })
}

/// Checks that every element may be used for `need`. Elements of length 0 name no memory, so their key does not matter.
pub(crate) fn check(mrs: &MrLookup<'_>, pd: u32, sges: &[Sge], need: Access) -> Result<(), KeyError> {
    for sge in sges.iter().filter(|sge| sge.length != 0) {
        mrs.with(sge.lkey, pd, sge.addr, u64::from(sge.length), need, |_, _| ())?;
    }
    Ok(())
}

fn walk<E: From<KeyError>>(
    sges: &[Sge],
    mut offset: u64,
    mut len: usize,
    mut visit: impl FnMut(&Sge, u64, usize) -> Result<(), E>,
) -> Result<(), E> {
    for sge in sges {
        if len == 0 {
            break;
        }
        let length = u64::from(sge.length);
        if offset >= length {
            offset -= length;
            continue;
        }
        let part = len.min((length - offset) as usize);
        visit(sge, sge.addr.wrapping_add(offset), part)?;
        len -= part;
        offset = 0;
    }
    if len == 0 { Ok(()) } else { Err(KeyError.into()) }
}
