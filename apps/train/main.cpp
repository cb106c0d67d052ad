// Trains a GPT on any mesh of ranks.
#include "program.h"

int main(int argc, char** argv) { return train::run_program(train::Kind::dense, argc, argv); }
