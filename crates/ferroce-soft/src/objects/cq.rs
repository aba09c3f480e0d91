use super::channel::SoftChannel;
use super::context::SoftContext;
use super::events::{Events, RawEvent};
use crate::engine::{CompletionQueue, CqObserver};
use ferroce_verbs::provider::CqOps;
use ferroce_verbs::{EventType, Result, WorkCompletion};
use std::sync::{Arc, OnceLock, Weak};

/// A completion queue.
pub(super) struct SoftCq {
    pub(super) id: u32,
    pub(super) queue: Arc<CompletionQueue>,
    context: Arc<SoftContext>,
}

struct Observer {
    id: u32,
    channel: Option<Arc<SoftChannel>>,
    cq: OnceLock<Weak<SoftCq>>,
    events: Arc<Events>,
}

impl CqObserver for Observer {
    fn notify(&self) {
        if let (Some(channel), Some(cq)) = (&self.channel, self.cq.get()) {
            channel.notify(cq.clone());
        }
    }

    fn overrun(&self) {
        self.events.push(RawEvent::Cq(EventType::CqErr, self.id));
    }
}

impl SoftCq {
    pub(super) fn new(context: Arc<SoftContext>, id: u32, cqe: u32, channel: Option<Arc<SoftChannel>>) -> Arc<Self> {
        let events = context.events.clone();
        let observer = Arc::new(Observer { id, channel, cq: OnceLock::new(), events });
        let queue = Arc::new(CompletionQueue::new(cqe as usize, observer.clone()));
        let cq = Arc::new(Self { id, queue, context });
        let _ = observer.cq.set(Arc::downgrade(&cq));
        cq
    }
}

impl Drop for SoftCq {
    fn drop(&mut self) {
        self.context.cqs.remove(self.id);
    }
}

impl CqOps for SoftCq {
    #[inline]
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize> {
        let count = self.queue.poll(out);
        if count != 0 {
            return Ok(count);
        }
        self.context.progress();
        Ok(self.queue.poll(out))
    }

    fn req_notify(&self, solicited_only: bool) -> Result<()> {
        self.queue.arm(solicited_only);
        self.context.port.armed();
        Ok(())
    }

    fn cqe(&self) -> u32 {
        self.queue.capacity() as u32
    }
}
