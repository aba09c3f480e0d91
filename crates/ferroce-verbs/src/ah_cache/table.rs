//! The table of a cache, in shards with a lock each. Nothing is resolved, destroyed or told to anybody under a lock.

use super::config::Ttl;
use super::counters::{AhCacheCounters, count};
use super::entry::{AhLease, Entry, Shared};
use super::error::AhError;
use super::evict::Eviction;
use super::flight::{Flight, Resolution};
use super::key::{Key, folded, halves};
use super::neighbours::{Moment, Neighbours};
use super::{AhCacheOptions, AhResolver, CloseReport, parked};
use crate::sync::Hashing;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::{AddressChange, Ah, AhAttr, LinkLayer, Pd, Result};
use hashbrown::{HashMap, HashTable};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Shards: many more than threads that look at one time.
#[cfg(not(test))]
const SHARDS: usize = 64;
/// A model has few keys, and looks at all shards.
#[cfg(test)]
const SHARDS: usize = 2;

/// So often an address is resolved once more if it changes while it is. Whoever waits then gets what there is, which is not kept.
const MOST_REPEATS: u32 = 8;

/// And so often at most if it could not be resolved at all: whoever waits has waited for a timeout already.
const MOST_REPEATS_OF_FAILURES: u32 = 1;

/// Entries of a shard before those that expired are looked for.
const FIRST_SWEEP: usize = 64;

pub(crate) struct Core {
    pub(super) shared: Arc<Shared>,
    pub(super) resolver: Arc<dyn AhResolver>,
    shards: Box<[Shard]>,
    hasher: Hashing,
    /// Nobody outside knows which addresses share a shard.
    seed: u64,
    generations: AtomicU64,
    /// Entries and resolutions under way; only with a capacity.
    used: AtomicUsize,
    eviction: Eviction,
    neighbours: Neighbours,
}

#[repr(align(128))]
struct Shard(Mutex<Table>);

pub(super) struct Table {
    entries: HashTable<Arc<Entry>>,
    flights: HashMap<Key, UnderWay, Hashing>,
    is_closed: bool,
    hits: u64,
    /// When there are so many entries, those that have expired are looked for.
    next_sweep: usize,
}

/// A resolution, and whether something changed since it was begun that concerns it whatever comes out. Neighbours do not.
struct UnderWay {
    flight: Arc<Flight>,
    is_stale: bool,
}

/// What a table knows of a key: three answers, of which no fourth can be confused with one.
enum Found {
    Hit(AhLease),
    /// It was there and is not any more.
    Expired(Arc<Entry>),
    Miss,
}

/// What a get comes to.
pub(super) enum Step {
    Hit(AhLease),
    /// Somebody resolves the address already.
    Wait(Arc<Flight>),
    /// The caller has to see to it.
    Lead(Resolution),
}

impl Core {
    pub(super) fn new(options: AhCacheOptions) -> Arc<Self> {
        let hasher = Hashing::default();
        let shard = |_| {
            Shard(Mutex::new(Table {
                entries: HashTable::new(),
                flights: HashMap::with_hasher(hasher.clone()),
                is_closed: false,
                hits: 0,
                next_sweep: FIRST_SWEEP,
            }))
        };
        Arc::new(Self {
            shared: Arc::new(Shared::new(options.config, options.clock)),
            resolver: options.resolver,
            shards: (0..SHARDS).map(shard).collect(),
            seed: hasher.hash_one(0),
            hasher: hasher.clone(),
            generations: AtomicU64::new(0),
            used: AtomicUsize::new(0),
            eviction: Eviction::new(),
            neighbours: Neighbours::new(),
        })
    }

    #[inline]
    pub(super) fn hash(&self, key: &Key) -> u64 {
        self.hasher.hash_one(key)
    }

    /// All keys of one peer are in one shard, so that what happens to a peer concerns one.
    #[inline]
    fn shard(&self, dgid: [u64; 2]) -> &Mutex<Table> {
        let hash = folded(dgid[1] ^ self.seed, dgid[0]);
        &self.shards[hash as usize % SHARDS].0
    }

    /// The time, if anything depends on it.
    fn time(&self) -> u64 {
        if self.shared.is_timed { self.shared.now() } else { 0 }
    }

    /// A lease of what is there, or what has to be done for one.
    pub(super) fn begin(self: &Arc<Self>, key: Key, pd: &Pd, attr: &AhAttr) -> Result<Step, AhError> {
        let hash = self.hash(&key);
        if self.shared.config.ttl == Ttl::Bypass {
            return self.bypass(key, hash, pd, attr).map(Step::Lead);
        }
        let shard = self.shard(key.dgid());
        let mut room: Option<Room<'_>> = None;
        loop {
            let now = self.time();
            let mut table = shard.lock();
            if table.is_closed {
                return Err(AhError::Closed);
            }
            let expired = match table.find(&key, hash, now) {
                Found::Hit(lease) => return Ok(Step::Hit(lease)),
                // Its place is the new one's.
                Found::Expired(entry) => Some(entry),
                Found::Miss => {
                    if let Some(UnderWay { flight, .. }) = table.flights.get(&key) {
                        count(&self.shared.tally.shared_waits);
                        return Ok(Step::Wait(flight.clone()));
                    }
                    if let (Some(capacity), None) = (self.shared.config.capacity, &room) {
                        drop(table);
                        room = Some(self.make_room(capacity)?);
                        continue;
                    }
                    None
                }
            };
            let flight = Flight::new(attr);
            table.flights.insert(key, UnderWay { flight: flight.clone(), is_stale: false });
            drop(table);
            match &expired {
                Some(entry) => self.take_back(std::slice::from_ref(entry)),
                None => room.take().into_iter().for_each(Room::keep),
            }
            let tally = &self.shared.tally;
            count(if expired.is_some() { &tally.requeries } else { &tally.misses });
            let since = self.shared.clock.now();
            return Ok(Step::Lead(Resolution {
                core: self.clone(),
                flight,
                key,
                hash,
                pd: pd.clone(),
                since,
                begun: self.neighbours.now(),
                repeats: 0,
                is_done: false,
                is_shared: true,
            }));
        }
    }

    /// Resolves for this get alone.
    fn bypass(self: &Arc<Self>, key: Key, hash: u64, pd: &Pd, attr: &AhAttr) -> Result<Resolution, AhError> {
        if self.shard(key.dgid()).lock().is_closed {
            return Err(AhError::Closed);
        }
        count(&self.shared.tally.bypasses);
        Ok(Resolution {
            core: self.clone(),
            flight: Flight::new(attr),
            key,
            hash,
            pd: pd.clone(),
            since: self.shared.clock.now(),
            begun: Moment::default(),
            repeats: 0,
            is_done: false,
            is_shared: false,
        })
    }

    /// Takes the place of an entry, if need be that of one that nobody holds.
    fn make_room(&self, capacity: usize) -> Result<Room<'_>, AhError> {
        let more = |used| (used < capacity).then_some(used + 1);
        if self.used.fetch_update(Relaxed, Relaxed, more).is_ok() {
            return Ok(Room(self));
        }
        match self.eviction.one(self) {
            Some(entry) => {
                count(&self.shared.tally.evictions);
                drop(entry);
                Ok(Room(self))
            }
            None => {
                count(&self.shared.tally.refusals);
                Err(AhError::Full { capacity })
            }
        }
    }

    /// Entries and resolutions that there is no room for others for.
    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// An entry is not in the table any more.
    fn give_room(&self, entries: usize) {
        if self.shared.config.capacity.is_some() {
            self.used.fetch_sub(entries, Relaxed);
        }
    }

    /// Ends a resolution, or leaves it for another attempt.
    pub(super) fn publish(&self, resolution: &mut Resolution, outcome: Result<Ah>) {
        let Resolution { key, hash, .. } = *resolution;
        let tally = &self.shared.tally;
        let link = outcome.as_ref().ok().and_then(Ah::link_layer);
        // The clock is the program's.
        let created = self.time();
        let mut is_current = true;
        let mut entry = None;
        {
            let mut table = self.shard(key.dgid()).lock();
            if resolution.is_shared {
                let told = table.flights.get_mut(&key).is_some_and(|it| std::mem::take(&mut it.is_stale));
                // Before the entry can be seen: whoever knows that a router changed finds out that it is one.
                let since = std::mem::replace(&mut resolution.begun, self.neighbours.now());
                let (overtaken, most) = match &outcome {
                    Ok(_) => (self.neighbours.overtook(since, &key, link.as_ref()), MOST_REPEATS),
                    Err(_) => (self.neighbours.may_mend(since, &key), MOST_REPEATS_OF_FAILURES),
                };
                let stale = told || overtaken;
                if stale && !table.is_closed && resolution.repeats < most {
                    resolution.repeats += 1;
                    drop(table);
                    count(&tally.repeats);
                    return;
                }
                is_current = !stale;
                table.flights.remove(&key);
            }
            let is_closed = table.is_closed;
            let result = match outcome {
                _ if is_closed => Err(AhError::Closed),
                Err(error) => Err(AhError::resolve(resolution.attr(), error)),
                Ok(ah) => {
                    let generation = self.generations.fetch_add(1, Relaxed) + 1;
                    Ok(Entry::new(&self.shared, key, generation, &resolution.pd, ah, created))
                }
            };
            let is_kept = resolution.is_shared && is_current && result.is_ok();
            if let Ok(made) = &result {
                if is_kept {
                    table.insert(hash, made.clone(), |entry| self.hash(&entry.key));
                } else {
                    made.gone.store(true, Ordering::Release);
                }
            }
            if resolution.is_shared && !is_kept {
                self.give_room(1);
            }
            let _ = entry.insert(result);
        }
        let since = self.shared.clock.now().saturating_sub(resolution.since);
        tally.resolved(since);
        if matches!(entry, Some(Err(AhError::Resolve { .. }))) {
            count(&tally.failures);
        }
        resolution.is_done = true;
        if let Some(result) = entry {
            resolution.flight.land(result.map(AhLease::new));
        }
        self.sweep_if_due(key);
    }

    /// Looks for entries that have expired once there are twice as many entries as the last time: so it costs little for each,
    /// and what nobody asks for any more does not stay for ever.
    fn sweep_if_due(&self, key: Key) {
        if !self.shared.is_timed {
            return;
        }
        let now = self.shared.now();
        let expired = {
            let mut table = self.shard(key.dgid()).lock();
            if table.entries.len() < table.next_sweep {
                return;
            }
            let expired = table.take_if(|entry| Entry::is_expired(entry, now));
            table.next_sweep = (table.entries.len() * 2).max(FIRST_SWEEP);
            expired
        };
        self.take_back(&expired);
        self.give_room(expired.len());
    }

    /// Takes all entries that have expired out of the table; returns how many.
    pub(super) fn sweep(&self) -> usize {
        let now = self.time();
        let mut swept = 0;
        for shard in &self.shards {
            let expired = shard.0.lock().take_if(|entry| Entry::is_expired(entry, now));
            self.take_back(&expired);
            self.give_room(expired.len());
            swept += expired.len();
        }
        swept
    }

    /// Takes the entries that a change concerns out of the table; returns how many.
    pub(super) fn invalidate(&self, change: &AddressChange) -> usize {
        // Those under way first, for one that lands meanwhile is an entry by then.
        if let AddressChange::Neighbour { ifindex, ip, mac } = *change {
            if !self.neighbours.note(ifindex, ip, mac) {
                let shard = self.shard(halves(ip.into()));
                return self.remove([shard].into_iter(), |entry| entry.is_concerned(change));
            }
        } else {
            for shard in &self.shards {
                for (key, it) in &mut shard.0.lock().flights {
                    it.is_stale |= concerns(change, key, None);
                }
            }
        }
        self.remove_all(|entry| entry.is_concerned(change))
    }

    /// Takes the entry of a key out of the table, and what is being resolved for it; returns whether there was one.
    pub(super) fn invalidate_key(&self, key: &Key) -> bool {
        let shard = self.shard(key.dgid());
        if let Some(it) = shard.lock().flights.get_mut(key) {
            it.is_stale = true;
        }
        self.remove([shard].into_iter(), |entry| entry.key == *key) != 0
    }

    /// Takes entries out of the table; returns how many.
    pub(super) fn remove_all(&self, which: impl FnMut(&Entry) -> bool) -> usize {
        self.remove(self.shards.iter().map(|shard| &shard.0), which)
    }

    fn remove<'a>(
        &'a self,
        shards: impl Iterator<Item = &'a Mutex<Table>>,
        mut which: impl FnMut(&Entry) -> bool,
    ) -> usize {
        let mut removed = Vec::new();
        for shard in shards {
            removed.extend(shard.lock().take_if(|entry| which(entry)));
        }
        self.give_room(removed.len());
        self.shared.tally.invalidations.fetch_add(removed.len() as u64, Relaxed);
        self.take_back(&removed);
        removed.len()
    }

    /// Threads that put them last may have them at hand for the next get. That is over, before the table's references go.
    fn take_back(&self, removed: &[Arc<Entry>]) {
        // There are no new references to what is not in the table: so one is the table's, and none is parked.
        if removed.iter().any(|entry| !Entry::is_idle(entry)) {
            parked::take_back(&self.shared, removed);
        }
    }

    /// Nothing is in the cache any more, and nothing will be.
    pub(super) fn close(&self) -> CloseReport {
        parked::take_back_all(&self.shared);
        let mut report = CloseReport::default();
        let mut removed = Vec::new();
        for shard in &self.shards {
            let mut table = shard.0.lock();
            table.is_closed = true;
            report.in_flight += table.flights.len();
            removed.extend(table.take_if(|_| true));
        }
        // Once more: what was put since waits with its thread again.
        parked::take_back_all(&self.shared);
        report.entries = removed.len();
        for entry in &removed {
            let leases = Arc::strong_count(entry) - 1;
            report.held += usize::from(leases != 0);
            report.leases += leases;
        }
        self.give_room(removed.len());
        report
    }

    /// Calls `f` for each entry that nobody holds.
    pub(super) fn each_idle(&self, mut f: impl FnMut(&Entry)) {
        for shard in &self.shards {
            let table = shard.0.lock();
            table.entries.iter().filter(|entry| Entry::is_idle(entry)).for_each(|entry| f(entry));
        }
    }

    /// Takes an idle entry out of the table, if it was put at that time last.
    pub(super) fn take_idle(&self, dgid: [u64; 2], hash: u64, order: u64) -> Option<Arc<Entry>> {
        let mut table = self.shard(dgid).lock();
        let is_it = |entry: &Arc<Entry>| entry.order.load(Relaxed) == order && Entry::is_idle(entry);
        table.take(hash, is_it)
    }

    pub(super) fn counters(&self) -> AhCacheCounters {
        // What waits with its thread for the next get is idle.
        parked::take_back_all(&self.shared);
        let mut counters = self.shared.tally.read();
        counters.hits = parked::hits(&self.shared);
        for shard in &self.shards {
            let table = shard.0.lock();
            counters.hits += table.hits;
            counters.entries += table.entries.len() as u64;
            counters.in_flight += table.flights.len() as u64;
            counters.idle += table.entries.iter().filter(|entry| Entry::is_idle(entry)).count() as u64;
        }
        counters
    }
}

/// The right to one more entry than there are. It is given back if nothing came of it.
struct Room<'a>(&'a Core);

impl Room<'_> {
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.0.give_room(1);
    }
}

impl Table {
    fn find(&mut self, key: &Key, hash: u64, now: u64) -> Found {
        if let Some(entry) = self.entries.find(hash, |entry| entry.key == *key) {
            if !Entry::is_expired(entry, now) {
                self.hits += 1;
                return Found::Hit(AhLease::new(entry.clone()));
            }
            return self.take(hash, |entry| entry.key == *key).map_or(Found::Miss, Found::Expired);
        }
        Found::Miss
    }

    fn insert(&mut self, hash: u64, entry: Arc<Entry>, hasher: impl Fn(&Arc<Entry>) -> u64) {
        self.entries.insert_unique(hash, entry, hasher);
    }

    fn take(&mut self, hash: u64, is_it: impl FnMut(&Arc<Entry>) -> bool) -> Option<Arc<Entry>> {
        let entry = self.entries.find_entry(hash, is_it).ok()?.remove().0;
        entry.gone.store(true, Ordering::Release);
        Some(entry)
    }

    fn take_if(&mut self, mut which: impl FnMut(&Arc<Entry>) -> bool) -> Vec<Arc<Entry>> {
        let taken: Vec<_> = self.entries.extract_if(|entry| which(entry)).collect();
        taken.iter().for_each(|entry| entry.gone.store(true, Ordering::Release));
        taken
    }
}

impl Entry {
    fn is_concerned(&self, change: &AddressChange) -> bool {
        concerns(change, &self.key, self.ah().link_layer().as_ref())
    }
}

/// Whether a change concerns an address that was resolved so.
fn concerns(change: &AddressChange, key: &Key, link: Option<&LinkLayer>) -> bool {
    match *change {
        AddressChange::Neighbour { ifindex, ip, mac } => {
            let is_it = |link: &LinkLayer| link.ifindex == ifindex && link.next_hop == ip && link.mac != mac;
            link.is_some_and(|link| link.is_unknown() || is_it(link))
        }
        // A GID that is local or no longer so is reached another way.
        AddressChange::Gid { port, index, gid } => {
            key.port_num() == port && key.sgid_index() == Some(index) || key.goes_to(gid)
        }
        AddressChange::Port { port } => key.port_num() == port,
        AddressChange::Route { prefix, prefix_len } => key.goes_into(prefix, prefix_len),
        AddressChange::Unknown => true,
    }
}
