// `llm train`: full or low-rank, on any mesh; left and taken up again on another.
#pragma once

#include <functional>
#include <memory>

#include "args.h"
#include "dtensor/checkpoint.h"
#include "dtensor/optim.h"
#include "dtensor/optim/optimizer.h"
#include "model.h"
#include "train/data.h"
#include "train/step_record.h"

namespace llm {

// By flags: --schedule over --steps, after --warmup of them. wsd decays over the last tenth.
dtensor::LearningRate learning_rate(const TrainOptions& options);

// Without --lora-targets: what makes queries and values of this model.
dtensor::nn::LoraOptions lora_options(const TrainOptions& options, const dtensor::nn::DecoderConfig& config);

// Throws UsageError for one of --lora-targets that no projection of this model is called.
void check_lora_targets(const TrainOptions& options, const dtensor::nn::DecoderConfig& config);

// A model that learns: AdamW over what is trained.
class Trainer {
 public:
  Trainer(const Model& model, const TrainOptions& options);

  // One step on ids and the tokens after them, int64 [batch, sequence], the same on every rank. Collective. Throws
  // dtensor::NonFiniteError, before anything is updated, where the loss or the norm of the gradients is not finite.
  train::StepRecord step(const train::Batch& batch);
  // The mean loss, without a step. Collective.
  double loss(const train::Batch& batch) const;
  std::int64_t steps_done() const { return steps_done_; }

  // After so many steps of a run that is taken up.
  void set_steps_done(std::int64_t steps) { steps_done_ = steps; }
  // What is trained and the optimizer, which must outlive the checkpoint; on any mesh.
  void add_to(dtensor::Checkpoint& checkpoint);

 private:
  at::Tensor mean_loss(const train::Batch& batch) const;

  const Model& model_;
  TrainOptions options_;
  dtensor::LearningRate rate_;
  dtensor::NamedTensors trained_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<dtensor::Optimizer> optimizer_;
  std::int64_t steps_done_ = 0;
};

// The mean loss over all of a corpus, in batches of sequences that follow each other. Collective.
double evaluate(const Trainer& trainer, const std::vector<std::int32_t>& tokens, const TrainOptions& options);

struct TrainTexts {
  train::Corpus corpus;                // --data
  std::vector<std::int32_t> held_out;  // --eval
};

// Tokenizes --data and --eval. Called once per process, before its ranks start. Throws UsageError.
TrainTexts read_texts(const Options& options, const Family& family);

// All of it: reads the model, trains, tells rank 0's terminal and files, saves, exports. Returns the signal on which
// the run was saved and left, before it was through; else 0.
int run_train(const Options& options, const Family& family, const TrainTexts& texts,
              const dtensor::Communicator& world);

}  // namespace llm
