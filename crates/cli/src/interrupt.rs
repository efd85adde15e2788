//! Ctrl-C as a flag that a generation looks at between two tokens.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit status of a program that a shell's user interrupted: 128 + SIGINT.
pub const EXIT_INTERRUPTED: u8 = 130;

static RAISED: AtomicBool = AtomicBool::new(false);

/// Proof that Ctrl-C no longer ends the program but raises a flag. There is one flag for the process.
#[derive(Debug, Clone, Copy)]
pub struct Interrupt(());

impl Interrupt {
    /// Takes Ctrl-C over for the rest of the process. A second Ctrl-C before anybody looked ends the process
    /// with status 130, so that a program that hangs can still be stopped.
    ///
    /// # Errors
    /// When the system refuses the handler.
    pub fn install() -> Result<Self, ctrlc::Error> {
        static INSTALLED: OnceLock<()> = OnceLock::new();
        if INSTALLED.get().is_none() {
            ctrlc::set_handler(raise)?;
            let _ = INSTALLED.set(());
        }
        Ok(Self(()))
    }

    /// True when Ctrl-C was pressed since the flag was last taken. Leaves the flag raised.
    pub fn is_raised(self) -> bool {
        RAISED.load(Ordering::Relaxed)
    }

    /// Lowers the flag and says whether it was raised.
    pub fn take(self) -> bool {
        RAISED.swap(false, Ordering::Relaxed)
    }
}

fn raise() {
    if RAISED.swap(true, Ordering::Relaxed) {
        std::process::exit(EXIT_INTERRUPTED.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taking_the_flag_lowers_it() {
        let interrupt = Interrupt::install().unwrap();
        let again = Interrupt::install().unwrap();
        assert!(!interrupt.is_raised());
        raise();
        assert!(interrupt.is_raised());
        assert!(again.take());
        assert!(!interrupt.take());
    }
}
