//! Steps over rows: a loaded model, its sequences and what each row wants back.
