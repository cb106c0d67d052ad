// Trains a mixture-of-experts language model on any mesh of ranks: apps/train with experts instead of MLPs.
#include "train/program.h"

int main(int argc, char** argv) { return train::run_program(train::Kind::experts, argc, argv); }
