// Collectives and messages that ranks may mix up. Each is correct if every rank makes it.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

#include "dtensor/comm.h"

namespace dtensor::test {

struct CommCall {
  std::string name;
  std::string says;  // name in error messages
  std::function<void(const Communicator&)> run;
};

inline std::vector<at::Tensor> parts(const Communicator& world, at::IntArrayRef sizes) {
  std::vector<at::Tensor> list;
  for (int i = 0; i < world.size(); ++i) list.push_back(at::ones(sizes));
  return list;
}

inline std::vector<CommCall> comm_calls() {
  using C = const Communicator&;
  const auto next = [](C w) { return (w.rank() + 1) % w.size(); };
  const auto former = [](C w) { return (w.rank() + w.size() - 1) % w.size(); };
  return {
      {"all_gather", "all_gather", [](C w) { w.all_gather(parts(w, {4}), at::ones({4})).wait(); }},
      {"reduce_scatter", "reduce_scatter",
       [](C w) { w.reduce_scatter(at::ones({4}), parts(w, {4}), ReduceOp::sum).wait(); }},
      {"all_reduce", "all_reduce", [](C w) { w.all_reduce(at::ones({4}), ReduceOp::sum).wait(); }},
      {"all_reduce of maxima", "all_reduce", [](C w) { w.all_reduce(at::ones({4}), ReduceOp::max).wait(); }},
      {"all_reduce of doubles", "all_reduce",
       [](C w) { w.all_reduce(at::ones({4}, at::kDouble), ReduceOp::sum).wait(); }},
      {"all_reduce of others", "all_reduce", [](C w) { w.all_reduce(at::ones({5}), ReduceOp::sum).wait(); }},
      {"all_reduce of much", "all_reduce", [](C w) { w.all_reduce(at::ones({1 << 16}), ReduceOp::sum).wait(); }},
      {"all_to_all", "all_to_all", [](C w) { w.all_to_all(parts(w, {4}), parts(w, {4})).wait(); }},
      {"all_gather_list", "all_gather",
       [](C w) {
         auto outputs = parts(w, {4});
         for (const auto& t : parts(w, {4})) outputs.push_back(t);
         w.all_gather_list(outputs, {at::ones({4}), at::ones({4})}).wait();
       }},
      {"broadcast", "broadcast", [](C w) { w.broadcast(at::ones({4}), 0).wait(); }},
      {"broadcast of another", "broadcast", [](C w) { w.broadcast(at::ones({4}), 1).wait(); }},
      {"barrier", "barrier", [](C w) { w.barrier(); }},
      {"send", "send",
       [next, former](C w) {
         const at::Tensor in = at::ones({1 << 16});
         Work sent = w.send(at::ones({1 << 16}), next(w)), received = w.recv(in, former(w));
         sent.wait(), received.wait();
       }},
      {"recv", "recv",
       [next, former](C w) {
         const at::Tensor in = at::ones({4});
         Work received = w.recv(in, former(w), 3);
         if (w.rank() != 0) received.wait();
         Work sent = w.send(at::ones({4}), next(w), 3);
         received.wait(), sent.wait();
       }},
  };
}

}  // namespace dtensor::test
