//! Compare-and-swap and fetch-and-add.

use crate::failure::{ensure, ensure_eq};
use crate::fixture::{Build, Endpoint, Link, Memory, Pair, ok};
use crate::{Case, CaseResult, Env, Failure};
use ferroce_verbs::{AtomicCap, QpType, SendFlags, SendOp, SendWr, Sge, WcOpcode};

pub(super) fn add(all: &mut Vec<Case>) {
    for signaled in [true, false] {
        let flag = if signaled { "signaled" } else { "unsignaled" };
        all.push(Case::new(format!("data/rc/cmp-swap/{flag}"), move |env| compare_swap(env, signaled)));
        all.push(Case::new(format!("data/rc/fetch-add/{flag}"), move |env| fetch_add(env, signaled)));
    }
    all.push(Case::new("data/rc/fetch-add/result-in-pieces", result_in_pieces));
    all.push(Case::new("data/rc/fetch-add/many-outstanding", many_outstanding));
    all.push(Case::new("data/rc/fetch-add/two-requesters", two_requesters));
}

/// Skips the case on a device without atomics.
pub(crate) fn need_atomics(env: &Env) -> CaseResult {
    match env.device()?.atomic_cap {
        AtomicCap::None => Err(Failure::not_applicable("the device has no atomics")),
        AtomicCap::Device | AtomicCap::Global => Ok(()),
    }
}

/// Where the word is: aligned, with guard bytes on both sides.
const WORD: usize = 64;

struct Bench {
    pair: Pair,
    word: Memory,
    old: Memory,
}

impl Bench {
    fn new(env: &Env) -> CaseResult<Self> {
        need_atomics(env)?;
        let pair = Pair::rc(env)?;
        let (word, old) = (pair.b.memory(136)?, pair.a.memory(40)?);
        Ok(Self { pair, word, old })
    }

    fn fetch_add(&self, add: u64) -> SendOp {
        SendOp::FetchAdd { remote_addr: self.word.addr(WORD), rkey: self.word.mr.rkey(), add }
    }

    fn compare_swap(&self, compare: u64, swap: u64) -> SendOp {
        SendOp::CompareSwap { remote_addr: self.word.addr(WORD), rkey: self.word.mr.rkey(), compare, swap }
    }

    /// Executes `op` on a word that is `before`; checks that the old value came back and the word is `after`.
    fn step(&self, op: SendOp, opcode: WcOpcode, signaled: bool, before: u64, after: u64) -> CaseResult {
        let a = &self.pair.a;
        self.old.clear()?;
        self.word.clear()?;
        self.word.put_u64(WORD, before)?;
        let sges = self.old.sges(16, &[8])?;
        if signaled {
            a.post(SendWr::new(1, op, &sges))?;
            let wc = a.sent()?;
            ok(&wc, 1, opcode)?;
            ensure_eq!(wc.byte_len, 8, "byte_len");
        } else {
            a.post(SendWr::new(1, op, &sges).flags(SendFlags::empty()))?;
            let (remote_addr, rkey) = (self.word.addr(0), self.word.mr.rkey());
            a.post(SendWr::new(2, SendOp::Write { remote_addr, rkey }, &[]))?;
            ok(&a.sent()?, 2, WcOpcode::RdmaWrite)?;
        }
        a.wait.nothing(&a.send_cq)?;
        self.old.expect(16, &[8], &before.to_ne_bytes())?;
        self.word.expect(WORD, &[8], &after.to_ne_bytes())
    }
}

fn compare_swap(env: &Env, signaled: bool) -> CaseResult {
    let bench = Bench::new(env)?;
    let step = |compare, swap, before, after| {
        bench.step(bench.compare_swap(compare, swap), WcOpcode::CompSwap, signaled, before, after)
    };
    step(0, 1, 0, 1)?;
    step(0x0102_0304_0506_0708, u64::MAX, 0x0102_0304_0506_0708, u64::MAX)?;
    // Unequal in one bit at either end: nothing is stored, the old value comes back all the same.
    step(5, 99, 4, 4)?;
    step(0, 99, 1 << 63, 1 << 63)?;
    step(u64::MAX, 0, u64::MAX, 0)
}

fn fetch_add(env: &Env, signaled: bool) -> CaseResult {
    let bench = Bench::new(env)?;
    let step = |add, before: u64| {
        bench.step(bench.fetch_add(add), WcOpcode::FetchAdd, signaled, before, before.wrapping_add(add))
    };
    step(1, 0)?;
    step(0, 7)?;
    step(0x0102_0304_0506_0708, 0x1122_3344_5566_7788)?;
    // The sum wraps, and a carry goes through all bytes.
    step(1, u64::MAX)?;
    step(u64::MAX, 5)
}

fn result_in_pieces(env: &Env) -> CaseResult {
    need_atomics(env)?;
    let pair = Pair::new(env, &Build::new(QpType::Rc).cap(|cap| cap.max_send_sge = 2), &Link::default())?;
    let (word, old) = (pair.b.memory(136)?, pair.a.memory(40)?);
    let before = u64::from_ne_bytes([1, 2, 3, 4, 5, 6, 7, 8]);
    word.put_u64(WORD, before)?;
    let sges = old.sges(1, &[3, 5])?;
    let op = SendOp::FetchAdd { remote_addr: word.addr(WORD), rkey: word.mr.rkey(), add: 3 };
    pair.a.post(SendWr::new(1, op, &sges))?;
    ok(&pair.a.sent()?, 1, WcOpcode::FetchAdd)?;
    old.expect(1, &[3, 5], &before.to_ne_bytes())?;
    ensure_eq!(word.get_u64(WORD)?, before.wrapping_add(3), "the word");
    Ok(())
}

/// More are posted than may be outstanding; each is executed once, in order.
fn many_outstanding(env: &Env) -> CaseResult {
    need_atomics(env)?;
    const COUNT: usize = 48;
    let pair = Pair::new(env, &Build::new(QpType::Rc), &Link { rd_atomic: 2, ..Link::default() })?;
    let (word, old) = (pair.b.memory(136)?, pair.a.memory(8 * COUNT)?);
    word.put_u64(WORD, 1000)?;
    for index in 0..COUNT {
        let op = SendOp::FetchAdd { remote_addr: word.addr(WORD), rkey: word.mr.rkey(), add: 1 };
        pair.a.post(SendWr::new(index as u64, op, &[old.mr.sge(8 * index..8 * index + 8)?]))?;
    }
    let all = pair.a.wait.take(&pair.a.send_cq, COUNT)?;
    crate::fixture::succeeded(&all, 0..COUNT as u64)?;
    for index in 0..COUNT {
        ensure_eq!(old.get_u64(8 * index)?, 1000 + index as u64, "what add number {index} found");
    }
    ensure_eq!(word.get_u64(WORD)?, 1000 + COUNT as u64, "the word at the end");
    Ok(())
}

/// Two queue pairs add to one word at one time; no sum is lost, no old value is seen twice.
fn two_requesters(env: &Env) -> CaseResult {
    need_atomics(env)?;
    const EACH: usize = 40;
    let first = Pair::rc(env)?;
    let second = Pair::of(env, &Build::new(QpType::Rc), &Build::new(QpType::Rc).pd(&first.b.pd), &Link::default())?;
    let word = first.b.memory(136)?;
    word.put_u64(WORD, 0)?;
    let op = SendOp::FetchAdd { remote_addr: word.addr(WORD), rkey: word.mr.rkey(), add: 1 };
    let requesters: Vec<(&Endpoint, Memory)> =
        [&first.a, &second.a].into_iter().map(|end| Ok((end, end.memory(8 * EACH)?))).collect::<CaseResult<_>>()?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = requesters
            .iter()
            .map(|(end, old)| {
                scope.spawn(move || -> CaseResult {
                    for index in 0..EACH {
                        let sge: [Sge; 1] = [old.mr.sge(8 * index..8 * index + 8)?];
                        end.post(SendWr::new(index as u64, op, &sge))?;
                    }
                    let all = end.wait.take(&end.send_cq, EACH)?;
                    crate::fixture::succeeded(&all, 0..EACH as u64)
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| Failure::new("a thread panicked"))?)
    })?;
    let mut seen = Vec::new();
    for (_, old) in &requesters {
        for index in 0..EACH {
            seen.push(old.get_u64(8 * index)?);
        }
    }
    seen.sort_unstable();
    ensure!(seen.iter().copied().eq(0..2 * EACH as u64), "the old values are {seen:?}");
    ensure_eq!(word.get_u64(WORD)?, 2 * EACH as u64, "the word at the end");
    Ok(())
}
