//! A line on the terminal while the user waits: for a model to load, a prompt to be read, or standard input.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Shorter waits show nothing.
const DELAY: Duration = Duration::from_millis(250);
const TICK: Duration = Duration::from_millis(100);
const FRAMES: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];
/// Columns beside the message.
const FRAME_COLUMNS: usize = 16;

/// Shows what is waited for, and for how long, until it is dropped. Only on a terminal.
#[derive(Debug)]
pub struct Waiting {
    /// Dropping it ends the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Waiting {
    /// Starts to wait. `is_quiet`: shows nothing.
    pub fn start(is_quiet: bool, what: impl Into<String>) -> Self {
        if is_quiet || !io::stderr().is_terminal() {
            return Self { end: None, thread: None };
        }
        let what = what.into();
        let (end, ended) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || show(&what, &ended));
        Self { end: Some(end), thread: Some(thread) }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.end = None;
        // It only draws, so a panic in it loses nothing.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Draws one line until `ended` is closed. The line is never full: a ^C that the terminal echoes stays on it, and is drawn over.
fn show(what: &str, ended: &Receiver<()>) {
    let since = Instant::now();
    if ended.recv_timeout(DELAY) != Err(RecvTimeoutError::Timeout) {
        return;
    }
    let columns = terminal_size::terminal_size_of(io::stderr()).map_or(80, |(width, _)| width.0.into());
    let what: String = what.chars().take(usize::saturating_sub(columns, FRAME_COLUMNS)).collect();
    let mut frames = FRAMES.iter().cycle();
    let draw = |line: &str| {
        let _ = write!(io::stderr().lock(), "\r{line}\x1b[K");
    };
    while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
        let frame = frames.next().copied().unwrap_or(' ');
        draw(&format!("{frame} {what} … {} s", since.elapsed().as_secs()));
    }
    draw("");
}
