//! Ctrl-C as a flag, and as cancellation of the current answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use verbatim_engine::Canceller;

/// Exit status of an interrupted program: 128 + SIGINT.
pub const EXIT_INTERRUPTED: u8 = 130;

static RAISED: AtomicBool = AtomicBool::new(false);
/// Cancels the current answer.
static ANSWER: Mutex<Option<Canceller>> = Mutex::new(None);

/// Proof that the Ctrl-C handler is installed, which sets a flag instead of ending the program. The flag is per process.
#[derive(Debug, Clone, Copy)]
pub struct Interrupt(());

impl Interrupt {
    /// Installs the Ctrl-C handler for the rest of the process. A second Ctrl-C before the flag was read ends the process
    /// with status 130, so that a hung program can still be stopped.
    ///
    /// # Errors
    /// When the handler cannot be installed.
    pub fn install() -> Result<Self, ctrlc::Error> {
        static INSTALLED: OnceLock<()> = OnceLock::new();
        if INSTALLED.get().is_none() {
            ctrlc::set_handler(raise)?;
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
        if self.is_raised() {
            cancel();
        }
        Cancelling(self)
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
    }
}
