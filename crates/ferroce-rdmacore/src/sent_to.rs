use ferroce_verbs::Ah;
use std::collections::VecDeque;

/// The address handles of the last datagrams: a send holds its address until it is complete, and a device may look it up until then.
///
/// Which sends are complete is not known here without looking at every completion of every queue pair; how many can be outstanding is.
/// So a handle is held until that many more were sent, or the queue pair goes back to RESET or away.
pub(crate) struct SentTo {
    ahs: VecDeque<Ah>,
    most: usize,
}

impl SentTo {
    /// For a send queue that was made for `max_send_wr`. Providers round up to a power of two at most.
    pub(crate) fn new(max_send_wr: u32) -> Self {
        Self { ahs: VecDeque::new(), most: (max_send_wr as usize + 1).next_power_of_two() }
    }

    /// Sends to these were posted; returns those whose sends are certainly complete, to be dropped when no lock is held.
    pub(crate) fn posted(&mut self, ahs: impl Iterator<Item = Ah>) -> [Option<Ah>; crate::sys::POST_BATCH] {
        self.ahs.extend(ahs);
        let mut done = [const { None }; crate::sys::POST_BATCH];
        for place in &mut done {
            if self.ahs.len() <= self.most {
                break;
            }
            *place = self.ahs.pop_front();
        }
        done
    }

    /// Whether no datagram was sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.ahs.is_empty()
    }

    /// Nothing is outstanding any more; returns what was held.
    pub(crate) fn clear(&mut self) -> VecDeque<Ah> {
        std::mem::take(&mut self.ahs)
    }
}
