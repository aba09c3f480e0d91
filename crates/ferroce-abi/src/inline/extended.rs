//! Verbs of the [`verbs_context`] around a context.
//!
//! It grew at its beginning, and says how long it is: newer libraries have more of it than this crate knows, older ones lack some.

use super::{made, unsupported};
use crate::Library;
use crate::types::{
    ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_port_attr, ibv_qp, ibv_qp_init_attr_ex, value, verbs_context,
};
use libc::{c_int, c_void, size_t};
use std::io;
use std::mem::{offset_of, size_of};
use std::ptr::NonNull;

/// What `abi_compat` holds in a context that is part of a [`verbs_context`].
const EXTENDED: *mut c_void = usize::MAX as *mut c_void;

/// Whether a [`verbs_context`] of `sz` bytes has the field at `offset`, counted in the structure that this crate knows: fields are
/// added at the beginning.
#[must_use]
pub fn has_field(sz: usize, offset: usize) -> bool {
    sz >= size_of::<verbs_context>() - offset
}

/// The field at `offset` of the [`verbs_context`] around a context; `None` if the library has no such field, or no such structure. Only what is there is
/// touched: the beginning of the structure may be missing.
///
/// # Safety
///
/// `context` is one that libibverbs opened and that is not closed, and `T` is the type of the field, for which the last argument vouches.
unsafe fn field<T: Copy>(context: *mut ibv_context, offset: usize, _: fn(&verbs_context) -> T) -> Option<T> {
    const CONTEXT: usize = offset_of!(verbs_context, context);
    // SAFETY: the caller gives a valid context.
    if unsafe { (*context).abi_compat } != EXTENDED {
        return None;
    }
    // SAFETY: the mark says that the context is the last field of a `verbs_context`, whose end has been the same in all versions.
    let sz = unsafe { context.byte_sub(CONTEXT - offset_of!(verbs_context, sz)).cast::<size_t>().read() };
    // SAFETY: so long is the structure, counted from its end.
    has_field(sz, offset).then(|| unsafe { context.byte_sub(CONTEXT - offset).cast::<T>().read() })
}

macro_rules! verb {
    ($context:expr, $field:ident) => {
        // SAFETY: the caller of the verb gives a valid context, and the type is that of the field.
        unsafe { field($context, offset_of!(verbs_context, $field), |all| all.$field) }.flatten()
    };
}

/// What a port is at the moment (`ibv_query_port`). Returns an error number.
///
/// The exported `ibv_query_port` is the form of 2006, which knows less; it is called only where a library has nothing better.
///
/// # Safety
///
/// `context` is open.
pub unsafe fn query_port(library: &Library, context: *mut ibv_context, port: u8, attr: &mut ibv_port_attr) -> c_int {
    *attr = ibv_port_attr::default();
    match verb!(context, query_port) {
        // SAFETY: `attr` has the size that is passed.
        Some(query) => unsafe { query(context, port, attr, size_of::<ibv_port_attr>()) },
        // SAFETY: it writes a structure that is no longer than `attr`.
        None => unsafe { (library.query_port)(context, port, attr) },
    }
}

/// Makes a queue pair of what `attr` says that it has (`ibv_create_qp_ex`). With `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS` its sends can be built by calls:
/// [`Library::qp_to_qp_ex`] gives it as what they take.
///
/// # Errors
///
/// `EOPNOTSUPP` if the library or the device has no such queue pairs, and whatever the device says.
///
/// # Safety
///
/// `context` is open, and what `attr` names is of it and alive.
pub unsafe fn create_qp_ex(
    library: &Library,
    context: *mut ibv_context,
    attr: &mut ibv_qp_init_attr_ex,
) -> io::Result<NonNull<ibv_qp>> {
    if attr.comp_mask == value::IBV_QP_INIT_ATTR_PD {
        // SAFETY: as the caller promises; the structure begins as an `ibv_qp_init_attr`.
        return made(unsafe { (library.create_qp)(attr.pd, std::ptr::from_mut(attr).cast()) });
    }
    let create = verb!(context, create_qp_ex).ok_or_else(unsupported)?;
    // SAFETY: as the caller promises.
    made(unsafe { create(context, attr) })
}

/// Makes a completion queue whose completions are read by calls (`ibv_create_cq_ex`). It is destroyed, and armed, as the
/// [`ibv_cq`](crate::types::ibv_cq) that it begins as.
///
/// # Errors
///
/// `EOPNOTSUPP` if the library or the device has no such queues, and whatever the device says.
///
/// # Safety
///
/// `context` is open, and what `attr` names is of it and alive.
pub unsafe fn create_cq_ex(
    context: *mut ibv_context,
    attr: &mut ibv_cq_init_attr_ex,
) -> io::Result<NonNull<ibv_cq_ex>> {
    let create = verb!(context, create_cq_ex).ok_or_else(unsupported)?;
    // SAFETY: as the caller promises.
    made(unsafe { create(context, attr) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::EOPNOTSUPP;
    use std::ptr::null_mut;

    /// A context as a library of this size has it: without the beginning, or with more in front.
    struct Grown {
        words: Vec<usize>,
        sz: usize,
    }

    const WORD: usize = size_of::<usize>();

    impl Grown {
        fn new(sz: usize) -> Self {
            assert!(sz.is_multiple_of(WORD) && sz >= size_of::<ibv_context>() + WORD);
            Self { words: vec![0; sz / WORD], sz }
        }

        fn context(&mut self) -> *mut ibv_context {
            let end = self.words.as_mut_ptr_range().end;
            // SAFETY: the structure is longer than its last field.
            let context: *mut ibv_context = unsafe { end.byte_sub(size_of::<ibv_context>()) }.cast();
            // SAFETY: it is all zeros, which is a value of it.
            unsafe {
                (*context).abi_compat = EXTENDED;
                context.cast::<usize>().sub(1).write(self.sz);
            }
            context
        }

        /// Puts something into a field, if there is one.
        fn set(&mut self, offset: usize, word: usize) {
            let back = (size_of::<verbs_context>() - offset) / WORD;
            if let Some(at) = self.words.len().checked_sub(back) {
                self.words[at] = word;
            }
        }
    }

    unsafe extern "C" fn query(_: *mut ibv_context, port: u8, attr: *mut ibv_port_attr, _: size_t) -> c_int {
        // SAFETY: the caller gives it.
        unsafe { (*attr).lid = u16::from(port) };
        0
    }

    unsafe extern "C" fn create(_: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
        attr.cast()
    }

    fn cq_attr() -> ibv_cq_init_attr_ex {
        ibv_cq_init_attr_ex {
            cqe: 1,
            cq_context: null_mut(),
            channel: null_mut(),
            comp_vector: 0,
            wc_flags: 0,
            comp_mask: 0,
            flags: 0,
            parent_domain: null_mut(),
        }
    }

    fn asked(context: *mut ibv_context) -> Option<u16> {
        let mut attr = ibv_port_attr::default();
        let query = verb!(context, query_port)?;
        // SAFETY: it is the one above.
        assert_eq!(unsafe { query(context, 7, &mut attr, size_of::<ibv_port_attr>()) }, 0);
        Some(attr.lid)
    }

    /// Libraries before 1.15, of today, and later ones: `query_port` was added last of what is known here.
    #[test]
    fn verbs_are_found_in_contexts_of_any_length() {
        let full = size_of::<verbs_context>();
        for (sz, has_query) in [(full, true), (full + 5 * WORD, true), (full - WORD, false)] {
            let mut grown = Grown::new(sz);
            grown.set(offset_of!(verbs_context, query_port), query as *const () as usize);
            grown.set(offset_of!(verbs_context, create_cq_ex), create as *const () as usize);
            let context = grown.context();
            assert_eq!(asked(context), has_query.then_some(7), "{sz}");
            let mut attr = cq_attr();
            // SAFETY: it has what is looked at.
            assert!(unsafe { create_cq_ex(context, &mut attr) }.is_ok(), "{sz}");
            // SAFETY: as above.
            unsafe { (*context).abi_compat = null_mut() };
            assert_eq!(asked(context), None, "a context that is not part of one");
        }
    }

    #[test]
    fn what_a_library_lacks_is_not_supported() {
        let full = size_of::<verbs_context>();
        let before = full - offset_of!(verbs_context, create_cq_ex) - WORD;
        // The field is empty, or is not there.
        for sz in [full, before] {
            let mut grown = Grown::new(sz);
            let context = grown.context();
            // SAFETY: it has what is looked at.
            let error = unsafe { create_cq_ex(context, &mut cq_attr()) }.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(EOPNOTSUPP));
        }
    }
}
