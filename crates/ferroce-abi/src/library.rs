//! The verbs that the library exports, found when they are first asked for.

use crate::Unavailable;
use crate::types::{
    ibv_ah, ibv_ah_attr, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_gid,
    ibv_gid_entry, ibv_mr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr, ibv_srq,
    ibv_srq_attr, ibv_srq_init_attr,
};
use libc::{c_int, c_uint, c_void, size_t, ssize_t};
use std::ffi::{OsStr, OsString};
use std::sync::OnceLock;

/// The environment variable that names the library's file.
pub const ENV_PATH: &str = "FERROCE_LIBIBVERBS";

const DEFAULT: &str = "libibverbs.so.1";

macro_rules! library {
    ($($field:ident $symbol:literal: fn($($arg:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// The functions of libibverbs. What they do is in its manual pages; none is safe to call with a pointer that is not what its
        /// type says, or that is destroyed.
        ///
        /// Those that return `c_int` return an error number and not -1, except `close_device`, `get_async_event` and
        /// `get_cq_event`; those that return a pointer return null and set `errno`.
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs)]
        pub struct Library {
            $(pub $field: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
        }

        impl Library {
            fn symbols(handle: &libloading::Library, name: &str) -> Result<Self, Unavailable> {
                Ok(Self {
                    $(
                        // SAFETY: the library exports this name with this type, which its ABI promises to keep.
                        $field: *unsafe { handle.get($symbol.as_bytes()) }.map_err(|source| Unavailable::Symbol {
                            name: name.into(),
                            symbol: $symbol,
                            source,
                        })?,
                    )*
                })
            }
        }
    };
}

library! {
    get_device_list "ibv_get_device_list": fn(*mut c_int) -> *mut *mut ibv_device;
    free_device_list "ibv_free_device_list": fn(*mut *mut ibv_device);
    get_device_guid "ibv_get_device_guid": fn(*mut ibv_device) -> u64;
    open_device "ibv_open_device": fn(*mut ibv_device) -> *mut ibv_context;
    close_device "ibv_close_device": fn(*mut ibv_context) -> c_int;
    get_async_event "ibv_get_async_event": fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ack_async_event "ibv_ack_async_event": fn(*mut ibv_async_event);
    query_device "ibv_query_device": fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    query_port "ibv_query_port": fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    query_gid_table "_ibv_query_gid_table": fn(*mut ibv_context, *mut ibv_gid_entry, size_t, u32, size_t) -> ssize_t;
    alloc_pd "ibv_alloc_pd": fn(*mut ibv_context) -> *mut ibv_pd;
    dealloc_pd "ibv_dealloc_pd": fn(*mut ibv_pd) -> c_int;
    reg_mr "ibv_reg_mr": fn(*mut ibv_pd, *mut c_void, size_t, c_int) -> *mut ibv_mr;
    dereg_mr "ibv_dereg_mr": fn(*mut ibv_mr) -> c_int;
    create_comp_channel "ibv_create_comp_channel": fn(*mut ibv_context) -> *mut ibv_comp_channel;
    destroy_comp_channel "ibv_destroy_comp_channel": fn(*mut ibv_comp_channel) -> c_int;
    create_cq "ibv_create_cq": fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    destroy_cq "ibv_destroy_cq": fn(*mut ibv_cq) -> c_int;
    get_cq_event "ibv_get_cq_event": fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ack_cq_events "ibv_ack_cq_events": fn(*mut ibv_cq, c_uint);
    create_srq "ibv_create_srq": fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    modify_srq "ibv_modify_srq": fn(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
    query_srq "ibv_query_srq": fn(*mut ibv_srq, *mut ibv_srq_attr) -> c_int;
    destroy_srq "ibv_destroy_srq": fn(*mut ibv_srq) -> c_int;
    create_qp "ibv_create_qp": fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    modify_qp "ibv_modify_qp": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    query_qp "ibv_query_qp": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    destroy_qp "ibv_destroy_qp": fn(*mut ibv_qp) -> c_int;
    qp_to_qp_ex "ibv_qp_to_qp_ex": fn(*mut ibv_qp) -> *mut ibv_qp_ex;
    create_ah "ibv_create_ah": fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
    destroy_ah "ibv_destroy_ah": fn(*mut ibv_ah) -> c_int;
    attach_mcast "ibv_attach_mcast": fn(*mut ibv_qp, *const ibv_gid, u16) -> c_int;
    detach_mcast "ibv_detach_mcast": fn(*mut ibv_qp, *const ibv_gid, u16) -> c_int;
}

impl Library {
    /// Opens the library in the file `path`, or of that name as the dynamic loader finds it. It stays loaded until the process ends, as
    /// its providers have threads and handlers of their own.
    ///
    /// # Errors
    ///
    /// [`Unavailable::Library`] if it cannot be loaded, [`Unavailable::Symbol`] if it is not libibverbs or too old.
    ///
    /// # Safety
    ///
    /// The file's initialisers run, and what it exports under the names of libibverbs is called as such: it must be libibverbs, or
    /// behave like it.
    pub unsafe fn open(path: &OsStr) -> Result<Self, Unavailable> {
        let name = path.to_string_lossy();
        // SAFETY: as the caller promises.
        let handle = unsafe { libloading::Library::new(path) }
            .map_err(|source| Unavailable::Library { name: name.clone().into_owned(), source })?;
        let library = Self::symbols(&handle, &name)?;
        std::mem::forget(handle);
        Ok(library)
    }
}

/// The library that `FERROCE_LIBIBVERBS` names, else `libibverbs.so.1`: opened by the first call that finds it, the same for all after
/// that.
///
/// # Errors
///
/// As [`Library::open`]. The next call tries again.
pub fn load() -> Result<&'static Library, Unavailable> {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    if let Some(library) = LIBRARY.get() {
        return Ok(library);
    }
    let path = std::env::var_os(ENV_PATH).filter(|path| !path.is_empty()).unwrap_or_else(|| OsString::from(DEFAULT));
    // SAFETY: by its name it is libibverbs; whoever sets the variable vouches for the file.
    let library = unsafe { Library::open(&path) }?;
    // Of two that load at once both have the same library.
    Ok(LIBRARY.get_or_init(|| library))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named_with_what_to_do() {
        // SAFETY: there is no such file.
        let error = unsafe { Library::open(OsStr::new("/nowhere/libibverbs.so.1")) }.unwrap_err();
        assert!(matches!(error, Unavailable::Library { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("/nowhere/libibverbs.so.1") && text.contains("apt install libibverbs1"), "{text}");
        assert!(text.contains("No such file"), "{text}");
    }

    #[test]
    fn a_library_of_something_else_is_refused() {
        // SAFETY: this library is loaded already.
        let error = unsafe { Library::open(OsStr::new("libc.so.6")) }.unwrap_err();
        assert!(matches!(error, Unavailable::Symbol { symbol: "ibv_get_device_list", .. }), "{error:?}");
    }
}
