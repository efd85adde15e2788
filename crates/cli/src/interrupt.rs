//! Ctrl-C as a flag and as cancellation of the current answer, and a clean end when the system ends the program.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use verbatim_engine::Canceller;

/// Exit status of an interrupted program: 128 + SIGINT.
pub const EXIT_INTERRUPTED: u8 = 130;

static RAISED: AtomicBool = AtomicBool::new(false);
/// Cancels the current answer.
static ANSWER: Mutex<Option<Canceller>> = Mutex::new(None);
/// How many things must be completed before the program may end. Locked while it is ended, so that nothing begins then.
static BUSY: Mutex<usize> = Mutex::new(0);
/// The signal that ends the program; 0: none has come.
static ENDING: AtomicUsize = AtomicUsize::new(0);

/// Proof that the Ctrl-C handler is installed, which sets a flag instead of ending the program. The flag is per process.
#[derive(Debug, Clone, Copy)]
pub struct Interrupt(());

impl Interrupt {
    /// Installs the Ctrl-C handler for the rest of the process. A second Ctrl-C before the flag was read ends the process
    /// with status 130, so that a hung program can still be stopped. On Unix, SIGTERM and SIGHUP (a closed window) cancel the answer
    /// and end the program as soon as it is not [`busy`](Self::busy); a second one ends it at once.
    ///
    /// # Errors
    /// When a handler cannot be installed.
    pub fn install() -> anyhow::Result<Self> {
        static INSTALLED: OnceLock<()> = OnceLock::new();
        if INSTALLED.get().is_none() {
            ctrlc::set_handler(raise)?;
            #[cfg(unix)]
            unix::handle_ends()?;
            let _ = INSTALLED.set(());
        }
        Ok(Self(()))
    }

    /// Whether the flag is set. Leaves it set.
    pub fn is_raised(self) -> bool {
        RAISED.load(Ordering::SeqCst)
    }

    /// Clears the flag and returns whether it was set.
    pub fn take(self) -> bool {
        RAISED.swap(false, Ordering::SeqCst)
    }

    /// From now until the guard is dropped, Ctrl-C cancels this answer; at once if it was pressed before.
    pub fn cancels(self, canceller: Canceller) -> Cancelling {
        *answer() = Some(canceller);
        // The handler sets the flag before it looks for an answer to cancel, so either it or this function cancels.
        if self.is_raised() || self.ending().is_some() {
            cancel();
        }
        Cancelling(self)
    }

    /// From now until the guard is dropped, a signal to end waits: an answer is being computed or saved.
    pub fn busy(self) -> Busy {
        *count_of_busy() += 1;
        Busy(())
    }

    /// The exit status if a signal to end has come: 128 + its number.
    pub fn ending(self) -> Option<u8> {
        let signal = ENDING.load(Ordering::SeqCst);
        (signal != 0).then(|| 128 + signal as u8)
    }
}

/// Something that must be completed before the program may end.
#[derive(Debug)]
pub struct Busy(());

impl Drop for Busy {
    fn drop(&mut self) {
        *count_of_busy() -= 1;
    }
}

/// An answer that Ctrl-C cancels. Dropping it clears the flag.
#[derive(Debug)]
pub struct Cancelling(Interrupt);

impl Drop for Cancelling {
    fn drop(&mut self) {
        *answer() = None;
        self.0.take();
    }
}

fn count_of_busy() -> MutexGuard<'static, usize> {
    BUSY.lock().unwrap_or_else(PoisonError::into_inner)
}

fn answer() -> MutexGuard<'static, Option<Canceller>> {
    ANSWER.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cancel() {
    if let Some(canceller) = &*answer() {
        canceller.cancel();
    }
}

fn raise() {
    if RAISED.swap(true, Ordering::SeqCst) {
        std::process::exit(EXIT_INTERRUPTED.into());
    }
    cancel();
}

#[cfg(unix)]
mod unix {
    use std::io::{self, IsTerminal, Write};
    use std::sync::atomic::Ordering;

    use rustix::termios::{self, OptionalActions, Termios};
    use signal_hook::consts::{SIGHUP, SIGTERM};
    use signal_hook::iterator::Signals;

    /// Starts the thread that waits for signals to end.
    pub(super) fn handle_ends() -> io::Result<()> {
        // The line editor changes the terminal while it reads.
        let terminal = termios::tcgetattr(io::stdin()).ok();
        let signals = if is_hangup_ignored() { vec![SIGTERM] } else { vec![SIGTERM, SIGHUP] };
        let mut signals = Signals::new(signals)?;
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in signals.forever() {
                let is_second = super::ENDING.swap(signal as usize, Ordering::SeqCst) != 0;
                super::cancel();
                let busy = super::count_of_busy();
                if is_second || *busy == 0 {
                    restore(terminal.as_ref());
                    std::process::exit(128 + signal);
                }
            }
        })?;
        Ok(())
    }

    fn restore(terminal: Option<&Termios>) {
        let Some(terminal) = terminal else { return };
        if io::stdout().is_terminal() {
            // Bracketed paste off, and the shell's prompt on a line of its own.
            let _ = io::stdout().write_all(b"\x1b[?2004l\r\n");
        }
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, terminal);
    }

    /// Whether the program was started by nohup or the like, and must outlive its terminal.
    fn is_hangup_ignored() -> bool {
        let Ok(status) = std::fs::read_to_string("/proc/self/status") else {
            return !io::stdin().is_terminal();
        };
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        mask & (1 << (SIGHUP - 1)) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taking_the_flag_clears_it() {
        let interrupt = Interrupt::install().unwrap();
        let again = Interrupt::install().unwrap();
        assert!(!interrupt.is_raised());
        raise();
        assert!(interrupt.is_raised());
        assert!(again.take());
        assert!(!interrupt.take());
        raise();
        drop(Cancelling(interrupt));
        assert!(!interrupt.is_raised());
        assert_eq!(interrupt.ending(), None);
    }
}
