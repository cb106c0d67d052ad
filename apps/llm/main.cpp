// Runs, trains and exports language models from HuggingFace folders, on any mesh of ranks.
#include "program.h"

int main(int argc, char** argv) { return llm::run_program(argc, argv); }
