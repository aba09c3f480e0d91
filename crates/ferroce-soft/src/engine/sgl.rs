//! Copies between packets and the memory that scatter/gather lists name.

use super::mr::{KeyError, MrLookup};
use ferroce_verbs::{Access, Sge};

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
        mrs.with(sge.lkey, pd, addr, len as u64, Access::empty(), |region, at| region.read(at, part).is_ok())
    })
}

/// Writes `bytes` to what lies `offset` bytes into the list. The caller knows that they fit.
#[inline]
pub(crate) fn scatter(mrs: &MrLookup<'_>, pd: u32, sges: &[Sge], offset: u64, bytes: &[u8]) -> Result<(), KeyError> {
    let mut bytes = bytes;
    walk(sges, offset, bytes.len(), |sge, addr, len| {
        let (part, rest) = bytes.split_at(len);
        bytes = rest;
        mrs.with(sge.lkey, pd, addr, len as u64, Access::LOCAL_WRITE, |region, at| region.write(at, part).is_ok())
    })
}

/// Checks that every element may be used for `need`. Elements of length 0 name no memory, so their key does not matter.
pub(crate) fn check(mrs: &MrLookup<'_>, pd: u32, sges: &[Sge], need: Access) -> Result<(), KeyError> {
    for sge in sges.iter().filter(|sge| sge.length != 0) {
        mrs.with(sge.lkey, pd, sge.addr, u64::from(sge.length), need, |_, _| ())?;
    }
    Ok(())
}

fn walk(
    sges: &[Sge],
    mut offset: u64,
    mut len: usize,
    mut visit: impl FnMut(&Sge, u64, usize) -> Result<bool, KeyError>,
) -> Result<(), KeyError> {
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
        if !visit(sge, sge.addr.wrapping_add(offset), part)? {
            return Err(KeyError);
        }
        len -= part;
        offset = 0;
    }
    if len == 0 { Ok(()) } else { Err(KeyError) }
}
