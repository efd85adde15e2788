//! A line on the terminal while the user waits: for a model to load, a prompt to be read, or standard input.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::standard_io::{draw_status, error_columns, has_terminal_commands, is_ascii_only, notify};

/// Shorter waits show nothing.
const DELAY: Duration = Duration::from_millis(200);
const TICK: Duration = Duration::from_millis(100);
const FRAMES: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
const ASCII_FRAMES: [&str; 4] = ["|", "/", "-", "\\"];
/// Columns of the bar.
const BAR_COLUMNS: usize = 20;
/// Columns beside the message and the bar.
const FRAME_COLUMNS: usize = 16;

/// How much is done of what is waited for, from 0 to 1.
type Share = Box<dyn Fn() -> f64 + Send>;

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
        Self::begin(is_quiet, what.into(), None)
    }

    /// Starts to wait, and shows how much is done: `share` says so, from 0 to 1.
    pub fn with_share(
        is_quiet: bool,
        what: impl Into<String>,
        share: impl Fn() -> f64 + Send + 'static,
    ) -> Self {
        Self::begin(is_quiet, what.into(), Some(Box::new(share)))
    }

    fn begin(is_quiet: bool, what: String, share: Option<Share>) -> Self {
        if is_quiet || !io::stderr().is_terminal() {
            return Self { end: None, thread: None };
        }
        let (end, ended) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || show(&what, share.as_deref(), &ended));
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
fn show(what: &str, share: Option<&(dyn Fn() -> f64 + Send)>, ended: &Receiver<()>) {
    let since = Instant::now();
    if ended.recv_timeout(DELAY) != Err(RecvTimeoutError::Timeout) {
        return;
    }
    if !has_terminal_commands() {
        notify(&format!("{what} ..."));
        let _ = ended.recv();
        return;
    }
    let is_ascii = is_ascii_only();
    let frames: &[&str] = if is_ascii { &ASCII_FRAMES } else { &FRAMES };
    for frame in frames.iter().cycle() {
        let text =
            line(what, share.map(|share| share()), since.elapsed(), error_columns().unwrap_or(80), is_ascii);
        draw_status(&format!("{frame} {text}"));
        if ended.recv_timeout(TICK) != Err(RecvTimeoutError::Timeout) {
            break;
        }
    }
    draw_status("");
}

/// `loading x █████░░░░░ 50 % … 3 s`. What does not fit is left out.
fn line(what: &str, share: Option<f64>, elapsed: Duration, columns: usize, is_ascii: bool) -> String {
    let room = columns.saturating_sub(FRAME_COLUMNS);
    let (full, empty, dots) = if is_ascii { ("#", "-", "...") } else { ("█", "░", "…") };
    let mut done = String::new();
    if let Some(share) = share.map(|share| share.clamp(0.0, 1.0)) {
        if room > what.chars().count() + BAR_COLUMNS {
            let cells = (share * BAR_COLUMNS as f64) as usize;
            done = format!(" {}{}", full.repeat(cells), empty.repeat(BAR_COLUMNS - cells));
        }
        done.push_str(&format!(" {:.0} %", (share * 100.0).floor()));
    }
    let what: String = what.chars().take(room).collect();
    format!("{what}{done} {dots} {} s", elapsed.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_fits_the_terminal() {
        let line =
            |share, columns, is_ascii| line("loading x", share, Duration::from_secs(3), columns, is_ascii);
        assert_eq!(line(None, 80, false), "loading x … 3 s");
        assert_eq!(line(Some(0.555), 80, false), "loading x ███████████░░░░░░░░░ 55 % … 3 s");
        assert_eq!(line(Some(1.1), 80, true), "loading x #################### 100 % ... 3 s");
        assert_eq!(line(Some(0.5), 40, false), "loading x 50 % … 3 s");
        assert_eq!(line(Some(0.5), 20, false), "load 50 % … 3 s");
    }
}
