//! Telling of changes of addresses: a thread that reads neighbours over netlink, and the events of the ports.
//!
//! Events go to every open context of the device, and who reads them takes them away from others who do; the thread therefore has a context
//! of its own.

use crate::context::RdmaContext;
use crate::port::gid_table;
use crate::sys::{RawContext, RawEvent};
use ferroce_abi::types::value;
use ferroce_addr::NeighbourWatch;
use ferroce_verbs::provider::ContextOps;
use ferroce_verbs::{AddressChange, AddressWatcher, Error, GidEntry, Result};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

/// Who is told; nobody once the thread has ended.
struct Watcher(Mutex<Option<Weak<dyn AddressWatcher>>>);

impl Watcher {
    fn new(watcher: Weak<dyn AddressWatcher>) -> Self {
        Self(Mutex::new(Some(watcher)))
    }

    /// `false` if nobody will be told any more.
    fn replace(&self, watcher: Weak<dyn AddressWatcher>) -> bool {
        let mut place = self.0.lock();
        let goes_on = place.is_some();
        if goes_on {
            *place = Some(watcher);
        }
        goes_on
    }

    fn tell(&self, change: &AddressChange) {
        let watcher = self.0.lock().as_ref().and_then(Weak::upgrade);
        if let Some(watcher) = watcher {
            watcher.changed(change);
        }
    }

    /// The last that is told. Who comes later needs another thread.
    fn end(&self) {
        let watcher = self.0.lock().take();
        if let Some(watcher) = watcher.and_then(|watcher| watcher.upgrade()) {
            watcher.changed(&AddressChange::Unknown);
        }
    }
}

/// A thread that watches. It ends when this is dropped.
pub(crate) struct Watch {
    watcher: Arc<Watcher>,
    stop: Arc<OwnedFd>,
}

struct Thread {
    watcher: Arc<Watcher>,
    stop: Arc<OwnedFd>,
    neighbours: NeighbourWatch,
    context: RawContext,
    /// The GID table of each port as it was last seen.
    tables: Vec<Vec<GidEntry>>,
}

impl Watch {
    pub(crate) fn start(context: &RdmaContext, watcher: Weak<dyn AddressWatcher>) -> Result<Self> {
        let os = |what| move |error: rustix::io::Errno| Error::os(what, error);
        let neighbours = NeighbourWatch::open().map_err(|error| Error::os("watching neighbours", error))?;
        let own = context.raw.open_again(&context.info().name)?;
        let ports = context.attr.phys_port_cnt;
        // What changes from here on is an event.
        let tables = (1..=ports).map(|port| gid_table(&own, ports, port)).collect::<Result<_>>()?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(os("creating an eventfd"))?;
        let (watcher, stop) = (Arc::new(Watcher::new(watcher)), Arc::new(stop));
        let thread = Thread { watcher: watcher.clone(), stop: stop.clone(), neighbours, context: own, tables };
        std::thread::Builder::new()
            .name("ferroce-watch".into())
            .spawn(move || thread.run())
            .map_err(|error| Error::os("starting a thread that watches addresses", error))?;
        Ok(Self { watcher, stop })
    }

    /// Tells somebody else from now on; `false` if nobody will be told any more, as watching has failed.
    pub(crate) fn replace(&self, watcher: Weak<dyn AddressWatcher>) -> bool {
        self.watcher.replace(watcher)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Cannot fail: the counter was 0.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
    }
}

impl Thread {
    fn run(mut self) {
        loop {
            let ready = {
                let (events, neighbours) = (self.context.async_fd(), self.neighbours.as_fd());
                let mut fds = [&*self.stop as &dyn AsFd, &neighbours, &events]
                    .map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN));
                match poll(&mut fds, None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => fds.map(|fd| !fd.revents().is_empty()),
                    Err(error) => {
                        tracing::error!(%error, "addresses are not watched any more");
                        return self.watcher.end();
                    }
                }
            };
            if ready[0] {
                return;
            }
            if ready[1] {
                self.neighbours.changes(&mut |change| self.watcher.tell(change));
            }
            if ready[2] && !self.events() {
                // With the device all that was resolved goes.
                return self.watcher.end();
            }
        }
    }

    /// Looks at all events that wait; `false` if the device is gone.
    fn events(&mut self) -> bool {
        loop {
            match self.context.next_async_event(|event| event) {
                Ok(None) => return true,
                Ok(Some(RawEvent::Port(value::IBV_EVENT_GID_CHANGE, port))) => self.gids(port),
                // What was resolved for it may be different: paths on InfiniBand depend on LIDs, partitions and the subnet manager, who
                // asks for everything to be registered anew when it is not sure what the others know.
                Ok(Some(RawEvent::Port(_, port))) => self.watcher.tell(&AddressChange::Port { port }),
                Ok(Some(RawEvent::Device(_))) | Err(_) => return false,
                Ok(Some(_)) => {}
            }
        }
    }

    /// The GID table of a port is different.
    fn gids(&mut self, port: u8) {
        let ports = u8::try_from(self.tables.len()).unwrap_or(u8::MAX);
        let Some(old) = self.tables.get_mut(usize::from(port).wrapping_sub(1)) else { return };
        let Ok(new) = gid_table(&self.context, ports, port) else { return self.watcher.tell(&AddressChange::Unknown) };
        let old = std::mem::replace(old, new.clone());
        for (index, gid) in differences(&old, &new) {
            self.watcher.tell(&AddressChange::Gid { port, index, gid });
        }
    }
}

/// The entries that came, went, or are different.
fn differences(old: &[GidEntry], new: &[GidEntry]) -> Vec<(u32, ferroce_verbs::Gid)> {
    let only_in = |these: &[GidEntry], those: &[GidEntry]| {
        let only = these.iter().filter(|entry| !those.contains(entry));
        only.map(|entry| (entry.index, entry.gid)).collect::<Vec<_>>()
    };
    let mut all = only_in(old, new);
    all.extend(only_in(new, old));
    // One whose network device changed is in both.
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_verbs::{Gid, Mtu};
    use std::net::Ipv4Addr;

    fn entry(index: u32, last: u8, mtu: Mtu) -> GidEntry {
        let gid = Gid::from(Ipv4Addr::new(10, 0, 0, last));
        GidEntry { index, gid, netdev: "eth0".into(), ifindex: 2, mtu, loopback: false }
    }

    #[derive(Default)]
    struct Told(Mutex<Vec<String>>);

    impl AddressWatcher for Told {
        fn changed(&self, change: &AddressChange) {
            self.0.lock().push(format!("{change:?}"));
        }
    }

    /// Whoever watches after that has to have another thread, or would never hear of anything.
    #[test]
    fn who_comes_after_the_end_is_not_taken() {
        let watchers = [(); 3].map(|()| Arc::<Told>::default());
        let [first, second, late] =
            watchers.each_ref().map(|told| Arc::downgrade(&(told.clone() as Arc<dyn AddressWatcher>)));
        let place = Watcher::new(first);
        assert!(place.replace(second));
        place.tell(&AddressChange::Port { port: 1 });
        place.end();
        assert!(!place.replace(late));
        place.tell(&AddressChange::Port { port: 2 });
        let told = watchers.map(|told| told.0.lock().clone());
        assert_eq!(told, [vec![], vec!["Port { port: 1 }".to_owned(), "Unknown".to_owned()], vec![]]);
    }

    #[test]
    fn what_came_went_or_changed_is_different() {
        let old = [entry(0, 1, Mtu::Mtu1024), entry(1, 2, Mtu::Mtu1024), entry(3, 3, Mtu::Mtu1024)];
        let new = [entry(0, 1, Mtu::Mtu1024), entry(1, 4, Mtu::Mtu1024), entry(3, 3, Mtu::Mtu4096)];
        let gid = |last| Gid::from(Ipv4Addr::new(10, 0, 0, last));
        let found = differences(&old, &new);
        for change in [(1, gid(2)), (1, gid(4)), (3, gid(3))] {
            assert!(found.contains(&change), "{change:?} in {found:?}");
        }
        assert!(!found.contains(&(0, gid(1))));
        assert!(differences(&old, &old).is_empty());
    }
}
