//! The engine thread: it owns the model and all sessions, and computes the steps of all running requests together (continuous
//! batching).

use crate::Stepper;
use crate::commands::{Command, Job, Sections};
use crate::generate::{Generation, Samples, Task, samples_of};
use crate::model_drafts::{DraftModel, ModelDrafter};
use crate::outbox::Outbox;
use crate::request::{Event, FinishReason, GenerationStats, RequestError};
use crate::row::{Row, StepError};
use crate::scheduler::{Demand, Scheduler};
use crate::session::{OpenedSession, Session, SessionError, SessionId, SessionOptions};
use crate::speculation::{Drafts, Speculator};
use crate::status::EngineStatus;
use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use verbatim_backend::Backend;
use verbatim_text::Tokenizer;

/// A running request.
struct Running {
    generation: Generation,
    session: SessionId,
    /// Whether the session was opened for this request and ends with it.
    is_temporary: bool,
    outbox: Outbox,
}

/// What a running request does in the next step.
enum NextStep {
    /// It could use these rows.
    Run(Demand),
    /// Nothing before its client reads.
    Paused,
    /// Nothing: it has ended.
    Finished(Result<FinishReason, RequestError>),
}

/// The engine thread's data. Requests that run are in the order in which they have started.
pub(crate) struct Worker<B: Backend> {
    stepper: Stepper<B>,
    tokenizer: Arc<Tokenizer>,
    sessions: HashMap<SessionId, Session>,
    /// Number of sessions opened so far.
    opened: u64,
    waiting: VecDeque<Job>,
    running: Vec<Running>,
    /// Finished requests whose events do not all fit into their channels.
    draining: Vec<Outbox>,
    scheduler: Scheduler,
    speculator: Speculator,
    model_drafter: Option<ModelDrafter>,
}

impl<B: Backend> Worker<B> {
    pub(crate) fn new(
        stepper: Stepper<B>,
        tokenizer: Arc<Tokenizer>,
        step_budget: Duration,
        draft_model: Option<DraftModel>,
    ) -> Self {
        Worker {
            stepper,
            tokenizer,
            sessions: HashMap::new(),
            opened: 0,
            waiting: VecDeque::new(),
            running: Vec::new(),
            draining: Vec::new(),
            scheduler: Scheduler::new(step_budget),
            speculator: Speculator::default(),
            model_drafter: draft_model.map(ModelDrafter::new),
        }
    }

    /// Runs until [`Command::Stop`].
    pub(crate) fn serve(mut self, commands: &Receiver<Command>) {
        while self.process_commands(commands) {
            self.work();
        }
    }

    /// Processes pending commands. Blocks for a command if there is nothing to compute. Returns false on [`Command::Stop`].
    fn process_commands(&mut self, commands: &Receiver<Command>) -> bool {
        loop {
            let command = if self.can_work() { commands.try_recv().ok() } else { commands.recv().ok() };
            match command {
                // The handle sends `Stop` before it is dropped, so an error here only means that the channel is empty.
                None => return true,
                Some(Command::Stop) => return false,
                Some(Command::Wake) => {}
                Some(Command::Submit(job)) => self.waiting.push_back(*job),
                Some(Command::Open(options, reply)) => drop(reply.send(self.open(&options))),
                Some(Command::Save(id, path, sections, reply)) => {
                    drop(reply.send(self.save(id, &path, sections)));
                }
                Some(Command::Close(id, reply)) => drop(reply.send(self.close(id))),
                Some(Command::Inspect(reply)) => drop(reply.send(self.status())),
            }
        }
    }

    /// Whether there is something to compute. Also flushes pending events.
    fn can_work(&mut self) -> bool {
        self.draining.retain_mut(|outbox| !outbox.flush());
        self.drop_cancelled();
        let runs =
            self.running.iter_mut().any(|running| running.outbox.flush() || running.outbox.is_cancelled());
        runs || self.next_job().is_some()
    }

    /// Ends queued requests that were cancelled.
    fn drop_cancelled(&mut self) {
        if !self.waiting.iter().any(|job| job.outbox.is_cancelled()) {
            return;
        }
        let (cancelled, waiting) = self.waiting.drain(..).partition(|job: &Job| job.outbox.is_cancelled());
        self.waiting = waiting;
        for Job { outbox, .. } in cancelled {
            let (reason, stats) = (FinishReason::Cancelled, GenerationStats::default());
            self.send_last(outbox, Event::Finished { reason, stats });
        }
    }

    /// Computes one step of the running requests.
    fn work(&mut self) {
        while let Some(job) = self.next_job().and_then(|index| self.waiting.remove(index)) {
            self.start(job);
        }
        let mut demands = Vec::with_capacity(self.running.len());
        let mut index = 0;
        while index < self.running.len() {
            match self.prepare(index) {
                NextStep::Finished(result) => {
                    let running = self.running.remove(index);
                    self.end(running, result);
                    continue;
                }
                NextStep::Run(demand) => demands.push((index, demand)),
                NextStep::Paused => {}
            }
            index += 1;
        }
        self.draft_by_model(&demands);
        self.limit_drafts(&mut demands);
        let (indices, demands): (Vec<usize>, Vec<Demand>) = demands.into_iter().unzip();
        let scheduled = self.scheduler.schedule(&demands);
        let scheduled: Vec<(usize, usize)> =
            indices.into_iter().zip(scheduled).filter(|&(_, rows)| rows > 0).collect();
        if scheduled.is_empty() {
            return;
        }
        let mut ended = self.step(&scheduled);
        // From the back, so that indices stay.
        ended.sort_by_key(|(index, _)| std::cmp::Reverse(*index));
        for (index, result) in ended {
            let running = self.running.remove(index);
            self.end(running, result);
        }
    }

    /// The queued request to start next: the one with the highest priority, of these the first, whose session is free. `None` if
    /// there is no sequence for it.
    fn next_job(&self) -> Option<usize> {
        let is_busy = |id| self.running.iter().any(|running| running.session == id);
        // With no request running, a missing sequence is an error for the client to see.
        let has_room = self.sessions.len() < self.stepper.options.sequences || self.running.is_empty();
        let can_start = |job: &Job| job.task.session.map_or(has_room, |id| !is_busy(id));
        let ready = self.waiting.iter().enumerate().filter(|(_, job)| can_start(job));
        ready
            .min_by_key(|(index, job)| (std::cmp::Reverse(job.task.priority), *index))
            .map(|(index, _)| index)
    }

    /// What a running request does in the next step; drafts if it decodes.
    fn prepare(&mut self, index: usize) -> NextStep {
        let Running { generation, session, outbox, .. } = &mut self.running[index];
        if outbox.is_cancelled() {
            return NextStep::Finished(Ok(FinishReason::Cancelled));
        }
        if !outbox.flush() {
            return NextStep::Paused;
        }
        let session = self.sessions.get_mut(session).expect("not closed while a request uses it");
        match generation.prepare(&mut self.stepper, session, &self.tokenizer, &self.speculator) {
            Ok(None) => NextStep::Run(generation.demand()),
            Ok(Some(reason)) => NextStep::Finished(Ok(reason)),
            Err(error) => NextStep::Finished(Err(error)),
        }
    }

    /// Drafts with the draft model.
    fn draft_by_model(&mut self, demands: &[(usize, Demand)]) {
        let Worker { stepper, sessions, running, scheduler, speculator, model_drafter, .. } = self;
        let Some(drafter) = model_drafter else { return };
        drafter.follow(stepper, running.iter().any(|running| running.generation.drafts.is_on()));
        let is_decoding = |index: &usize| {
            demands.iter().any(|(i, demand)| i == index && matches!(demand, Demand::Decode { .. }))
        };
        let decoding = running.iter_mut().enumerate().filter(|(index, _)| is_decoding(index));
        let decoding = decoding.map(|(_, Running { generation, session, .. })| {
            (generation, sessions.get(session).expect("not closed while a request uses it"))
        });
        drafter.draft(stepper, &mut decoding.collect::<Vec<_>>(), speculator, &scheduler.costs);
    }

    /// Shortens drafts to what is worth verifying.
    fn limit_drafts(&mut self, demands: &mut [(usize, Demand)]) {
        let mut wanted =
            demands.iter().filter(|(_, demand)| matches!(demand, Demand::Decode { .. })).peekable();
        let decoding = self
            .running
            .iter_mut()
            .enumerate()
            .filter(|(index, _)| wanted.next_if(|(wanted, _)| wanted == index).is_some());
        let mut decoding: Vec<(usize, &mut Drafts)> = decoding
            .map(|(_, Running { generation, .. })| (generation.pending_rows(), &mut generation.drafts))
            .collect();
        self.speculator.limit(&self.scheduler.costs, &mut decoding);
        for (index, demand) in demands {
            *demand = self.running[*index].generation.demand();
        }
    }

    /// Computes the given rows of the running requests, by index, in one step. Returns those that have ended.
    fn step(&mut self, scheduled: &[(usize, usize)]) -> Vec<(usize, Result<FinishReason, RequestError>)> {
        let mut ended = Vec::new();
        let mut members = Vec::with_capacity(scheduled.len());
        for &(index, rows) in scheduled {
            let Running { generation, session, .. } = &mut self.running[index];
            let session = self.sessions.get_mut(session).expect("not closed while a request uses it");
            match generation.begin_step(rows, &mut self.stepper, session, &self.tokenizer) {
                Ok(()) => members.push(index),
                Err(error) => ended.push((index, Err(error))),
            }
        }
        match self.compute(&members) {
            Ok(samples) => {
                for (index, samples) in members.into_iter().zip(samples) {
                    if let Some(result) = self.finish_step(index, samples) {
                        ended.push((index, result));
                    }
                }
            }
            // Computing each request alone tells which one fails.
            Err(_) if members.len() > 1 => {
                members.iter().for_each(|&index| self.roll_back(index));
                let alone = scheduled.iter().filter(|(index, _)| members.contains(index));
                ended.extend(alone.flat_map(|&rows| self.step(&[rows])).collect::<Vec<_>>());
            }
            Err(error) => {
                members.iter().for_each(|&index| self.roll_back(index));
                ended.extend(members.first().map(|&index| (index, Err(error.into()))));
            }
        }
        ended
    }

    /// Runs a step over all rows of these requests; returns the outcome of each.
    fn compute(&mut self, members: &[usize]) -> Result<Vec<Samples>, StepError> {
        let Worker { stepper, running, sessions, scheduler, .. } = self;
        let mut rows: Vec<Row<'_>> = Vec::new();
        let mut ranges = Vec::with_capacity(members.len());
        for &index in members {
            let Running { generation, session, .. } = &running[index];
            let start = rows.len();
            rows.extend(generation.rows(&sessions[session]));
            ranges.push(start..rows.len());
        }
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let built = stepper.statistics().built;
        let started = Instant::now();
        let outputs = stepper.step(&rows)?;
        let taken = started.elapsed();
        let samples = ranges.into_iter().map(|range| samples_of(&outputs, range)).collect();
        drop(outputs);
        if stepper.statistics().built == built {
            scheduler.costs.observe(rows.len(), taken);
        }
        Ok(samples)
    }

    /// Commits what a request keeps of a step, and sends its text. Returns the result if the answer has ended.
    fn finish_step(&mut self, index: usize, samples: Samples) -> Option<Result<FinishReason, RequestError>> {
        let Worker { stepper, tokenizer, sessions, running, speculator, .. } = self;
        let Running { generation, session, outbox, .. } = &mut running[index];
        let session = sessions.get_mut(session).expect("not closed while a request uses it");
        let finished = generation.finish_step(samples, stepper, session, tokenizer, speculator);
        outbox.signals.computed_tokens.store(generation.computed_prompt_tokens(), Ordering::Relaxed);
        generation.take_text().into_iter().for_each(|text| outbox.put(text));
        finished.transpose()
    }

    /// Drops the rows that a request has in flight.
    fn roll_back(&mut self, index: usize) {
        let session = self.sessions.get_mut(&self.running[index].session).expect("a request uses it");
        session.commit(&mut self.stepper, 0).expect("the sequence exists");
    }

    fn start(&mut self, Job { task, mut outbox }: Job) {
        let is_temporary = task.session.is_none();
        match self.begin(task) {
            Ok((session, generation)) => {
                outbox.put(generation.started());
                self.running.push(Running { generation, session, is_temporary, outbox });
            }
            Err(error) => self.send_last(outbox, Event::Failed(error)),
        }
    }

    fn begin(&mut self, task: Task) -> Result<(SessionId, Generation), RequestError> {
        let is_temporary = task.session.is_none();
        let id = match task.session {
            Some(id) => id,
            None => {
                let session = Session::begin(&mut self.stepper)?;
                self.add(session)
            }
        };
        let session = self.sessions.get_mut(&id).ok_or(RequestError::NoSuchSession)?;
        let generation = Generation::start(task, &mut self.stepper, session);
        if generation.is_err() {
            self.end_temporary_session(id, is_temporary);
        }
        Ok((id, generation?))
    }

    /// Ends a request that has run.
    fn end(&mut self, running: Running, result: Result<FinishReason, RequestError>) {
        let Running { generation, session, is_temporary, mut outbox } = running;
        let (rest, last) = match result {
            Ok(reason) => generation.finish(reason),
            Err(error) => (None, Event::Failed(error)),
        };
        self.end_temporary_session(session, is_temporary);
        rest.into_iter().for_each(|text| outbox.put(text));
        self.send_last(outbox, last);
    }

    fn end_temporary_session(&mut self, id: SessionId, is_temporary: bool) {
        if is_temporary && let Some(session) = self.sessions.remove(&id) {
            session.end(&mut self.stepper).expect("the sequence exists and its cache metadata is consistent");
        }
    }

    fn send_last(&mut self, mut outbox: Outbox, last: Event) {
        outbox.put(last);
        if !outbox.flush() {
            self.draining.push(outbox);
        }
    }

    fn status(&self) -> EngineStatus {
        let positions = |session: &Session| self.stepper.len(session.sequence()).unwrap_or(0);
        EngineStatus {
            sequences: self.stepper.options.sequences,
            used_sequences: self.sessions.len(),
            running: self.running.len(),
            waiting: self.waiting.len(),
            used_positions: self.sessions.values().map(positions).sum(),
            cached_bytes: self.stepper.cached_bytes(),
            programs: self.stepper.statistics(),
        }
    }

    fn add(&mut self, session: Session) -> SessionId {
        let id = SessionId(self.opened);
        self.opened += 1;
        self.sessions.insert(id, session);
        id
    }

    fn open(&mut self, options: &SessionOptions) -> Result<OpenedSession, SessionError> {
        let (session, restored) = Session::open(&mut self.stepper, options)?;
        Ok(OpenedSession { id: self.add(session), restored })
    }

    fn save(&mut self, id: SessionId, path: &Path, sections: Sections) -> Result<(), SessionError> {
        self.check_idle(id)?;
        let session = self.sessions.get(&id).ok_or(SessionError::NotOpen)?;
        session.save(&self.stepper, path, sections)
    }

    fn close(&mut self, id: SessionId) -> Result<(), SessionError> {
        self.check_idle(id)?;
        let session = self.sessions.remove(&id).ok_or(SessionError::NotOpen)?;
        Ok(session.end(&mut self.stepper)?)
    }

    /// Fails if a running or queued request uses a session.
    fn check_idle(&mut self, id: SessionId) -> Result<(), SessionError> {
        // Finish cancelled requests first: they no longer need the session.
        self.drop_cancelled();
        let user = self.running.iter().position(|running| running.session == id);
        match user {
            Some(index) if self.running[index].outbox.is_cancelled() => {
                let running = self.running.remove(index);
                self.end(running, Ok(FinishReason::Cancelled));
            }
            Some(_) => return Err(SessionError::Busy),
            None => {}
        }
        if self.waiting.iter().any(|job| job.task.session == Some(id)) {
            return Err(SessionError::Busy);
        }
        Ok(())
    }
}
