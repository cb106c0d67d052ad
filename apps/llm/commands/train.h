// `llm train`: full or low-rank, on any mesh; can be stopped and resumed on another mesh.
#pragma once

#include <functional>
#include <memory>

#include "dtensor/checkpoint.h"
#include "dtensor/optim.h"
#include "llm/args.h"
#include "llm/model.h"
#include "train/data/data.h"
#include "train/model/optimizer.h"
#include "train/output/step_record.h"

namespace llm {

// From the flags: --schedule over --steps, after --warmup of them. wsd decays over the last tenth.
dtensor::LearningRate learning_rate(const TrainOptions& options);

// Without --lora-targets: the projections of queries and values of this model.
dtensor::nn::LoraOptions lora_options(const TrainOptions& options, const dtensor::nn::DecoderConfig& config);

// Throws UsageError if one of --lora-targets is not the name of a projection of this model.
void check_lora_targets(const TrainOptions& options, const dtensor::nn::DecoderConfig& config);

// A model with an optimizer for its trained parameters.
class Trainer {
 public:
  Trainer(const Model& model, const TrainOptions& options);

  // One step on ids and next tokens, int64 [batch, sequence], the same on every rank. Collective. Throws
  // dtensor::NonFiniteError before any update if the loss or the gradient norm is not finite.
  train::StepRecord step(const train::Batch& batch);
  // The mean loss, without a step. Collective.
  double loss(const train::Batch& batch) const;
  train::Optimizer& optimizer() { return optimizer_; }

  // Adds the trained parameters and the optimizer, which must outlive the checkpoint. Any mesh can load them.
  void add_to(dtensor::Checkpoint& checkpoint);

 private:
  at::Tensor mean_loss(const train::Batch& batch) const;

  const Model& model_;
  dtensor::NamedTensors trained_;
  train::Optimizer optimizer_;
};

// The mean loss over a corpus, in batches of consecutive sequences. Collective.
double evaluate(const Trainer& trainer, const std::vector<std::int32_t>& tokens, const TrainOptions& options);

struct TrainTexts {
  train::Corpus corpus;                // --data
  std::vector<std::int32_t> held_out;  // --eval
};

// Tokenizes --data and --eval. Called once in each process, before its ranks start. Throws UsageError.
TrainTexts read_texts(const Options& options, const Family& family);

// --dry-run: two steps of rank 0 of --mesh on tokens of no text. Prints the report of the second. Returns the exit
// status: 1 if the peak exceeds --memory-limit.
int report_dry_run(const Options& options, const Family& family);

// Reads the model, trains, reports progress on rank 0, saves and exports. Returns the signal that stopped the run after
// it was saved, or 0.
int run_train(const Options& options, const Family& family, const TrainTexts& texts,
              const dtensor::Communicator& world);

}  // namespace llm
