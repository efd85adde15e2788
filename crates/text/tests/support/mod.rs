use verbatim_text::*;
use std::collections::HashMap;
pub fn data(path: &str) -> String { format!("{}/../../tests/data/{path}", env!("CARGO_MANIFEST_DIR")) }
enum V { S(Vec<u8>), N(f64), A(Vec<V>) }
struct R<'a>(&'a [u8]);
impl<'a> R<'a> {
    fn take(&mut self, n: usize) -> &'a [u8] { let (a, b) = self.0.split_at(n); self.0 = b; a }
    fn u32(&mut self) -> u32 { u32::from_le_bytes(self.take(4).try_into().unwrap()) }
    fn u64(&mut self) -> u64 { u64::from_le_bytes(self.take(8).try_into().unwrap()) }
    fn s(&mut self) -> Vec<u8> { let n = self.u64() as usize; self.take(n).to_vec() }
    fn v(&mut self, t: u32) -> V {
        match t {
            8 => V::S(self.s()),
            9 => { let t = self.u32(); let n = self.u64(); V::A((0..n).map(|_| self.v(t)).collect()) }
            0 | 1 | 7 => V::N(self.take(1)[0] as f64),
            4 => V::N(self.u32() as f64),
            5 => V::N(self.u32() as i32 as f64),
            6 => V::N(f32::from_bits(self.u32()) as f64),
            _ => panic!("{t}"),
        }
    }
}
pub fn source(path: &str) -> VocabSource {
    let bytes = std::fs::read(data(path)).unwrap();
    let mut r = R(&bytes[8..]);
    let (_, n) = (r.u64(), r.u64());
    let m: HashMap<String, V> = (0..n).map(|_| { let k = String::from_utf8(r.s()).unwrap(); let t = r.u32(); (k, r.v(t)) }).collect();
    let st = |k: &str| m.get(k).map(|v| { let V::S(s) = v else { panic!() }; String::from_utf8(s.clone()).unwrap() });
    let nu = |k: &str| m.get(&format!("tokenizer.ggml.{k}")).map(|v| { let V::N(s) = v else { panic!() }; *s });
    let ar = |k: &str| m.get(&format!("tokenizer.ggml.{k}")).map(|v| { let V::A(s) = v else { panic!() }; s });
    let f = |v: &V| { let V::N(n) = v else { panic!() }; *n };
    let b = |v: &V| { let V::S(n) = v else { panic!() }; n.clone() };
    VocabSource {
        name: st("general.name"), model: st("tokenizer.ggml.model").unwrap(), pre: st("tokenizer.ggml.pre"),
        tokens: ar("tokens").unwrap().iter().map(b).collect(),
        scores: ar("scores").map(|a| a.iter().map(|v| f(v) as f32).collect()),
        token_types: ar("token_type").map(|a| a.iter().map(|v| f(v) as i32).collect()),
        merges: ar("merges").map(|a| a.iter().map(|v| String::from_utf8(b(v)).unwrap()).collect()),
        special: SpecialIds { bos: nu("bos_token_id").map(|n| n as u32), eos: nu("eos_token_id").map(|n| n as u32),
          unk: nu("unknown_token_id").map(|n| n as u32), pad: nu("padding_token_id").map(|n| n as u32), ..Default::default() },
        add_bos: nu("add_bos_token").map(|n| n != 0.0), add_eos: nu("add_eos_token").map(|n| n != 0.0),
        add_space_prefix: nu("add_space_prefix").map(|n| n != 0.0), chat_template: st("tokenizer.chat_template"),
    }
}
