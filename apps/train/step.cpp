#include "step.h"

#include <ATen/ATen.h>

#include "dtensor/debug.h"
#include "dtensor/events.h"
#include "train/model/loss.h"

namespace train {

StepRecord run_step(Optimizer& optimizer, std::int64_t tokens, const StepCalls& calls,
                    const dtensor::Communicator& ranks) {
  StepRecord record{.step = optimizer.steps_done(), .tokens = tokens, .lr = optimizer.next_lr()};
  record.start = std::chrono::steady_clock::now();
  const dtensor::EventListener listener([&](const dtensor::Event& event) { record.moved[event.axis] += event.bytes; },
                                        {dtensor::Event::Kind::collective});
  const at::Tensor loss = calls.run(record);
  optimizer.step([&](const at::Tensor& norm) {
    if (calls.before_update) calls.before_update();
    record.loss = loss.item<double>();
    record.grad_norm = calls.read_norm ? calls.read_norm(norm) : value_of(norm).item<double>();
    check_step_finite({record.step + 1, record.loss, record.grad_norm}, calls.repeat, ranks);
  });
  if (calls.after_update) calls.after_update();
  record.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - record.start).count();
  return record;
}

}  // namespace train
