//! Captures: every packet of a link in a pcap file, for Wireshark.
//!
//! Recording is a copy into a bounded buffer under a short lock; a thread of its own writes the file. A recorder never waits
//! for the disk: what does not fit is not recorded, but counted.
//!
//! Several processes may write to one file, as the two that one command starts do: each appends whole records, and whoever comes
//! when nobody else writes to it begins it anew. A packet between two of them is in it twice, as sent and as received.

use std::fs::File;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ferroce_wire::capture::{PCAP_RECORD_LEN, pcap_header, pcap_record};
use ferroce_wire::{Flow, FrameMeta, ethernet_frame};
use parking_lot::{Condvar, Mutex};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Which way a packet went, seen from the one who records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Sent.
    Tx,
    /// Received.
    Rx,
}

/// What a record needs beyond the packet and its flow. The IPv4 identification is what the ICRC was computed or verified
/// with, so that Wireshark can verify it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureMeta {
    /// Which way the packet went.
    pub direction: Direction,
    /// IPv4 type of service or IPv6 traffic class.
    pub tos: u8,
    /// IPv4 time to live or IPv6 hop limit.
    pub ttl: u8,
    /// IPv4 identification.
    pub ip_id: u16,
}

/// A capture file being written. Clones write to the same file; any thread may record.
///
/// When the last clone is dropped what is buffered is written out. Errors of that are lost: call [`flush`](Self::flush) to
/// see them.
#[derive(Clone, Debug)]
pub struct Capture {
    writer: Arc<Writer>,
}

/// Held by the clones of a [`Capture`], not by the thread: its end is the end of the capture.
#[derive(Debug)]
struct Writer {
    shared: Arc<Shared>,
}

struct Shared {
    buffer: Mutex<Buffer>,
    /// Wakes the thread.
    filled: Condvar,
    /// Locked before `buffer` where both are.
    sink: Mutex<Sink>,
    bound: usize,
    recorded: AtomicU64,
    missed: AtomicU64,
}

struct Buffer {
    bytes: Vec<u8>,
    closed: bool,
}

struct Sink {
    out: Box<dyn Write + Send>,
    /// The other buffer, empty between writes.
    spare: Vec<u8>,
    /// Why nothing is written any more.
    failed: Option<(io::ErrorKind, String)>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("bound", &self.bound)
            .field("recorded", &self.recorded)
            .field("missed", &self.missed)
            .finish_non_exhaustive()
    }
}

impl Capture {
    /// Bytes worth waking the thread for; else it looks from time to time.
    const WORTH_WRITING: usize = 64 * 1024;
    const LOOK_EVERY: Duration = Duration::from_millis(100);

    /// Creates the file, empties it unless another capture writes to it, and buffers up to `bound` bytes of records (some MiB are a
    /// good choice).
    ///
    /// # Errors
    ///
    /// If the file cannot be created or written, or no thread be started.
    pub fn create(path: &Path, bound: usize) -> io::Result<Self> {
        let mut file = File::options().append(true).create(true).open(path)?;
        begin(&mut file)?;
        Self::start(file, bound)
    }

    /// Writes the capture to `out`, which sees large writes and may block.
    ///
    /// # Errors
    ///
    /// If the header cannot be written, or no thread be started.
    pub fn to_writer(mut out: impl Write + Send + 'static, bound: usize) -> io::Result<Self> {
        out.write_all(&pcap_header())?;
        Self::start(out, bound)
    }

    fn start(out: impl Write + Send + 'static, bound: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            buffer: Mutex::new(Buffer { bytes: Vec::new(), closed: false }),
            filled: Condvar::new(),
            sink: Mutex::new(Sink { out: Box::new(out), spare: Vec::new(), failed: None }),
            bound,
            recorded: AtomicU64::new(0),
            missed: AtomicU64::new(0),
        });
        let for_thread = shared.clone();
        std::thread::Builder::new().name("ferroce-capture".into()).spawn(move || for_thread.write_until_closed())?;
        Ok(Self { writer: Arc::new(Writer { shared }) })
    }

    /// Records a packet, BTH up to and including the ICRC, at the present time.
    pub fn record(&self, flow: &Flow, meta: &CaptureMeta, packet_with_icrc: &[u8]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.record_at(now, flow, meta, packet_with_icrc);
    }

    /// Records a packet at a time in nanoseconds since the Unix epoch.
    pub fn record_at(&self, time_ns: u64, flow: &Flow, meta: &CaptureMeta, packet_with_icrc: &[u8]) {
        /// Ethernet, IPv6 and UDP.
        const HEADERS: usize = 14 + 40 + 8;
        let shared = &*self.writer.shared;
        let mut buffer = shared.buffer.lock();
        let bytes = &mut buffer.bytes;
        let at = bytes.len();
        if at + PCAP_RECORD_LEN + HEADERS + packet_with_icrc.len() > shared.bound {
            shared.missed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        bytes.extend_from_slice(&[0; PCAP_RECORD_LEN]);
        let frame = FrameMeta {
            src_mac: mac(flow.ip.src(), meta.direction),
            dst_mac: mac(flow.ip.dst(), meta.direction),
            ttl: meta.ttl,
            tos: meta.tos,
            ip_id: meta.ip_id,
        };
        ethernet_frame(flow, &frame, packet_with_icrc, bytes);
        let record = pcap_record(time_ns, bytes.len() - at - PCAP_RECORD_LEN);
        bytes[at..at + PCAP_RECORD_LEN].copy_from_slice(&record);
        let wake = at < Self::WORTH_WRITING && bytes.len() >= Self::WORTH_WRITING;
        drop(buffer);
        shared.recorded.fetch_add(1, Ordering::Relaxed);
        if wake {
            shared.filled.notify_one();
        }
    }

    /// Writes all that was recorded before the call. Blocks as the file does.
    ///
    /// # Errors
    ///
    /// The first error of writing, then and ever after: the capture ends with it.
    pub fn flush(&self) -> io::Result<()> {
        self.writer.shared.write_out()
    }

    /// Ends the capture: writes all that was recorded before the call, and nothing after it, so that the end of the process cuts
    /// no record in two. Blocks as the file does.
    ///
    /// # Errors
    ///
    /// As for [`flush`](Self::flush).
    pub fn finish(&self) -> io::Result<()> {
        self.writer.shared.finish()
    }

    /// The same at the end of a process, which may be in the middle of recording or writing: waits for that until `until`.
    ///
    /// # Errors
    ///
    /// As for [`flush`](Self::flush); and if that is not over at `until`, when nothing more is written.
    pub fn finish_until(&self, until: Instant) -> io::Result<()> {
        let shared = &self.writer.shared;
        let late = || io::Error::new(io::ErrorKind::TimedOut, "somebody was still recording, or writing to the file");
        let mut sink = shared.sink.try_lock_until(until).ok_or_else(late)?;
        let mut buffer = shared.buffer.try_lock_until(until).ok_or_else(late)?;
        std::mem::swap(&mut sink.spare, &mut buffer.bytes);
        drop(buffer);
        sink.end()
    }

    /// Packets recorded.
    #[must_use]
    pub fn recorded(&self) -> u64 {
        self.writer.shared.recorded.load(Ordering::Relaxed)
    }

    /// Packets not recorded because the buffer was full.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.writer.shared.missed.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn write_until_closed(&self) {
        loop {
            {
                let mut buffer = self.buffer.lock();
                if buffer.closed {
                    return;
                }
                if buffer.bytes.len() < Capture::WORTH_WRITING {
                    self.filled.wait_for(&mut buffer, Capture::LOOK_EVERY);
                }
            }
            // `flush` reports the error.
            let _ = self.write_out();
        }
    }

    fn finish(&self) -> io::Result<()> {
        let mut sink = self.sink.lock();
        std::mem::swap(&mut sink.spare, &mut self.buffer.lock().bytes);
        sink.end()
    }

    fn write_out(&self) -> io::Result<()> {
        let mut sink = self.sink.lock();
        std::mem::swap(&mut sink.spare, &mut self.buffer.lock().bytes);
        sink.write()
    }
}

impl Sink {
    /// Writes what has been swapped for the spare buffer, and nothing more ever after. Closes the file under the lock: nothing is being
    /// written when this returns.
    fn end(&mut self) -> io::Result<()> {
        let written = self.write();
        self.out = Box::new(io::sink());
        written
    }

    fn write(&mut self) -> io::Result<()> {
        let Self { out, spare, failed } = self;
        if failed.is_none()
            && !spare.is_empty()
            && let Err(e) = out.write_all(spare).and_then(|()| out.flush())
        {
            *failed = Some((e.kind(), e.to_string()));
        }
        spare.clear();
        match failed {
            Some((kind, text)) => Err(io::Error::new(*kind, text.clone())),
            None => Ok(()),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.buffer.lock().closed = true;
        self.shared.filled.notify_one();
        // Here rather than in the thread, which the end of the process would not wait for. So is the end of the file: the thread
        // notices later.
        let _ = self.shared.finish();
    }
}

/// Begins a capture file, unless somebody writes to it already. That somebody does is said by a shared lock, which the kernel
/// releases at the latest when the process ends.
fn begin(file: &mut File) -> io::Result<()> {
    let shared = file.metadata()?.is_file();
    if shared {
        match flock(&*file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => file.set_len(0)?,
            // Held for as long as it takes to write the header, or shared.
            Err(Errno::WOULDBLOCK) => return Ok(flock(&*file, FlockOperation::LockShared)?),
            // A file system without locks.
            Err(_) => file.set_len(0)?,
        }
    }
    file.write_all(&pcap_header())?;
    if shared {
        let _ = flock(&*file, FlockOperation::LockShared);
    }
    Ok(())
}

/// A locally administered link address that names a host and the direction: Wireshark shows who is who.
fn mac(ip: IpAddr, direction: Direction) -> [u8; 6] {
    let [a, b, c, d] = match ip {
        IpAddr::V4(v4) => v4.octets(),
        IpAddr::V6(v6) => (v6.to_bits() as u32).to_be_bytes(),
    };
    let direction = match direction {
        Direction::Tx => 0,
        Direction::Rx => 1,
    };
    [0x02, direction, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use ferroce_wire::IpPair;

    use super::*;

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Full;

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // The file header fits.
            if bytes.len() == 24 { Ok(24) } else { Err(io::ErrorKind::StorageFull.into()) }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    const FLOW: Flow = Flow {
        ip: IpPair::V4 { src: Ipv4Addr::new(10, 0, 0, 1), dst: Ipv4Addr::new(10, 0, 0, 2) },
        src_port: 4791,
        dst_port: 4791,
    };
    const META: CaptureMeta = CaptureMeta { direction: Direction::Rx, tos: 1, ttl: 2, ip_id: 3 };

    /// Frames of a capture, each with its time.
    fn frames(mut file: &[u8]) -> Vec<(u64, Vec<u8>)> {
        assert_eq!(file[..24], pcap_header());
        file = &file[24..];
        let mut frames = Vec::new();
        while !file.is_empty() {
            let word = |i: usize| u32::from_le_bytes(file[4 * i..][..4].try_into().unwrap());
            let time = u64::from(word(0)) * 1_000_000_000 + u64::from(word(1));
            let len = word(2) as usize;
            frames.push((time, file[16..16 + len].to_vec()));
            file = &file[16 + len..];
        }
        frames
    }

    #[test]
    fn packets_of_many_threads_are_all_there() {
        let memory = Memory::default();
        let capture = Capture::to_writer(memory.clone(), 1 << 24).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let capture = capture.clone();
                scope.spawn(move || {
                    for i in 0..500 {
                        let packet = [thread as u8; 100];
                        capture.record_at(thread * 1000 + i, &FLOW, &META, &packet);
                    }
                });
            }
        });
        capture.flush().unwrap();
        assert_eq!((capture.recorded(), capture.missed()), (2000, 0));
        let file = memory.0.lock().clone();
        let mut frames = frames(&file);
        frames.sort_by_key(|(time, _)| *time);
        assert_eq!(frames.len(), 2000);
        for (i, (time, frame)) in frames.iter().enumerate() {
            let (thread, i) = (i as u64 / 500, i as u64 % 500);
            assert_eq!(*time, thread * 1000 + i);
            assert_eq!(frame[..6], [2, 1, 10, 0, 0, 2]);
            assert_eq!(frame[14 + 20 + 8..], [thread as u8; 100]);
        }
    }

    #[test]
    fn the_last_drop_writes_the_rest() {
        let memory = Memory::default();
        let capture = Capture::to_writer(memory.clone(), 1 << 20).unwrap();
        capture.record(&FLOW, &META, &[0; 16]);
        drop(capture.clone());
        drop(capture);
        assert_eq!(frames(&memory.0.lock()).len(), 1);
    }

    /// As two processes that were started with the same environment.
    #[test]
    fn several_captures_share_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("capture.pcap");
        std::fs::write(&path, "what was there before").unwrap();
        let captures: Vec<_> = (0..3).map(|_| Capture::create(&path, 1 << 24).unwrap()).collect();
        std::thread::scope(|scope| {
            for (writer, capture) in (0..).zip(captures) {
                scope.spawn(move || {
                    for i in 0..300 {
                        capture.record_at(writer * 1000 + i, &FLOW, &META, &[writer as u8; 100]);
                        if i % 7 == writer {
                            capture.flush().unwrap();
                        }
                    }
                });
            }
        });
        let frames = frames(&std::fs::read(&path).unwrap());
        for writer in 0..3 {
            let times = frames.iter().filter(|(_, frame)| frame.last() == Some(&writer)).map(|(time, _)| *time);
            let first = u64::from(writer) * 1000;
            assert!(times.eq(first..first + 300), "what writer {writer} recorded");
        }
        // The next one finds nobody.
        drop(Capture::create(&path, 1 << 20).unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), pcap_header());
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let memory = Memory::default();
        // Too little for the packet, whatever the thread does meanwhile.
        let capture = Capture::to_writer(memory.clone(), 1000).unwrap();
        capture.record(&FLOW, &META, &[0; 1000]);
        capture.record(&FLOW, &META, &[0; 100]);
        capture.flush().unwrap();
        assert_eq!((capture.recorded(), capture.missed()), (1, 1));
        assert_eq!(frames(&memory.0.lock()).len(), 1);
    }

    #[test]
    fn a_full_disk_is_reported_and_stays_reported() {
        let capture = Capture::to_writer(Full, 1 << 20).unwrap();
        capture.record(&FLOW, &META, &[0; 16]);
        for _ in 0..2 {
            let e = capture.flush().unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::StorageFull);
        }
    }
}
