//! What programs that use the UD transport know, and what must be so at their peers.

use crate::failure::{Checked, Failure, ensure};
use ferroce_transport::ud::{AM_IDS, Delivery, EndpointId, Event, SendError};
use std::collections::{HashMap, HashSet};

/// A message: which session it is of, which of that it is, and bytes that follow from these.
pub(super) fn payload(tag: u32, number: u32, most: usize) -> Vec<u8> {
    let mut message = [tag.to_be_bytes(), number.to_be_bytes()].concat();
    message.resize(8 + (tag as usize + 31 * number as usize) % (most - 7), (tag ^ number) as u8);
    message
}

/// What one endpoint of a program went through.
#[derive(Default)]
struct Story {
    tag: u32,
    sent: u32,
    connected: bool,
    refused: bool,
    failed: bool,
}

/// A program: its endpoints.
#[derive(Default)]
pub(super) struct Program {
    /// Those that it has not closed.
    pub(super) open: Vec<EndpointId>,
    stories: HashMap<EndpointId, Story>,
    gone: HashSet<EndpointId>,
}

impl Program {
    pub(super) fn begin(&mut self, id: EndpointId, tag: u32) -> Checked {
        self.open.push(id);
        let before = self.stories.insert(id, Story { tag, ..Story::default() });
        ensure!(before.is_none() && !self.is_gone(id), "{id} is used twice");
        Ok(())
    }

    /// Endpoints that are not gone.
    pub(super) fn len(&self) -> usize {
        self.stories.len()
    }

    pub(super) fn is_gone(&self, id: EndpointId) -> bool {
        self.gone.contains(&id)
    }

    fn story(&mut self, id: EndpointId) -> Checked<&mut Story> {
        self.stories.get_mut(&id).ok_or_else(|| Failure::new(format!("{id} is none of the program's")))
    }

    /// The next message of an endpoint.
    pub(super) fn next(&mut self, id: EndpointId) -> Checked<(u32, u32)> {
        self.story(id).map(|story| (story.tag, story.sent))
    }

    /// It was sent.
    pub(super) fn sent(&mut self, id: EndpointId, arrived: &mut Arrived) -> Checked {
        let story = self.story(id)?;
        story.sent += 1;
        arrived.sent(story.tag, story.sent);
        Ok(())
    }

    /// It found no room.
    pub(super) fn refused(&mut self, id: EndpointId) -> Checked {
        self.story(id)?.refused = true;
        Ok(())
    }

    pub(super) fn note(&mut self, event: &Event) -> Checked {
        match *event {
            Event::Connected(id) => {
                let open = self.open.contains(&id);
                let story = self.story(id)?;
                ensure!(open && !story.connected && !story.failed, "{id} is connected twice, or after its end");
                story.connected = true;
            }
            Event::Room(id) => {
                let open = self.open.contains(&id);
                let story = self.story(id)?;
                ensure!(open && story.refused && !story.failed, "{id} has room, and was refused nothing");
                story.refused = false;
            }
            Event::Failed(id, _) => {
                let open = self.open.contains(&id);
                let story = self.story(id)?;
                ensure!(open && !story.failed, "{id} failed twice, or after it was closed");
                story.failed = true;
            }
            // Those that peers made come and go unseen.
            Event::Gone(id) => {
                if self.stories.remove(&id).is_some() {
                    ensure!(!self.open.contains(&id), "{id} is gone, and was not closed");
                    self.gone.insert(id);
                }
            }
        }
        Ok(())
    }
}

/// A session, for whoever checks what arrives.
struct Session {
    from: usize,
    to: usize,
    sent: u32,
    arrived: u32,
    at: Option<EndpointId>,
}

/// What may arrive, and what did.
#[derive(Default)]
pub(super) struct Arrived(Vec<Session>);

impl Arrived {
    /// A session begins; returns what its messages are marked with.
    pub(super) fn begin(&mut self, from: usize, to: usize) -> u32 {
        self.0.push(Session { from, to, sent: 0, arrived: 0, at: None });
        self.0.len() as u32 - 1
    }

    fn sent(&mut self, tag: u32, count: u32) {
        if let Some(session) = self.0.get_mut(tag as usize) {
            session.sent = count;
        }
    }

    /// A message arrived at `to`, from the honest host `from`.
    pub(super) fn check(&mut self, from: usize, to: usize, delivery: &Delivery<'_>) -> Checked {
        let word = |at: usize| {
            let bytes = delivery.payload.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u32::from_be_bytes).ok_or_else(|| Failure::new("a message that nobody sent"))
        };
        let (tag, number) = (word(0)?, word(4)?);
        let session = self.0.get_mut(tag as usize).ok_or_else(|| Failure::new("a message of no session"))?;
        ensure!((session.from, session.to) == (from, to), "a message of another peer's session");
        let fill = (tag ^ number) as u8;
        let whole = delivery.payload[8..].iter().all(|byte| *byte == fill);
        ensure!(whole && delivery.am == (number % u32::from(AM_IDS)) as u8, "not what was sent");
        ensure!(number < session.sent, "message {number} of {} that were sent", session.sent);
        ensure!(number == session.arrived, "message {number} after {} others", session.arrived);
        ensure!(session.at.is_none_or(|at| at == delivery.endpoint), "one session at two endpoints");
        session.at = Some(delivery.endpoint);
        session.arrived += 1;
        Ok(())
    }
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        Self::new(format!("a call of the transport failed: {error}"))
    }
}
