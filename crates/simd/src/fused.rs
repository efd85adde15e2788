//! `fmaf`, which `f32::mul_add` calls without hardware FMA, for Windows programs linked with mingw-w64: the mingw-w64 version
//! rounds the product as well, so that the last bit differs in one case of three.

#[cfg(all(windows, target_env = "gnu"))]
mod symbol {
    /// a * b + c, rounded once.
    // SAFETY: it has the name, the type and the semantics of C's function, so every caller of that may call this.
    #[unsafe(no_mangle)]
    extern "C" fn fmaf(a: f32, b: f32, c: f32) -> f32 {
        libm::fmaf(a, b, c)
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    #[test]
    fn mul_add_rounds_once() {
        // (1 + 2^-12)^2 is 1 + 2^-11 + 2^-24, of which the last term is lost when the product is rounded.
        let (x, minus_rounded) = (1.0 + 2f32.powi(-12), -(1.0 + 2f32.powi(-11)));
        assert_eq!(black_box(x).mul_add(black_box(x), black_box(minus_rounded)), 2f32.powi(-24));
        let mut state = 1u64;
        let mut number = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / 8_388_608.0 - 1.0
        };
        for _ in 0..100_000 {
            let (a, b, c) = (number(), number(), number() * 1e-3);
            assert_eq!(black_box(a).mul_add(black_box(b), black_box(c)), libm::fmaf(a, b, c), "{a} {b} {c}");
        }
    }
}
