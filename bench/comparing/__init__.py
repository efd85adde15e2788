"""The parts of bench/compare.

options        what is asked for
tests          what tests are called
programs       running other programs, none of which outlives its use
busy           processes that compete for the processors
verbatim       Verbatim's speeds
llama_bench    llama.cpp's speeds by llama-bench (and llama-batched-bench)
llama_server   llama.cpp's speeds through llama-server
rounds         the turns that they take
loading        time to the first token from a cold file and from a warm one
figures        medians and ratios of the samples
tables         how they are printed
"""
