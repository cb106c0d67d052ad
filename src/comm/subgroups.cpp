// Communicators of subsets of the members.
#include <ATen/ATen.h>

#include <algorithm>

#include "dtensor/comm_backend.h"

namespace dtensor {

Communicator Communicator::split(int color, int key) const {
  const auto n = static_cast<std::size_t>(size());
  std::vector<std::int64_t> answers(2 * n);
  std::int64_t mine[] = {color, key};
  const at::Tensor all = at::from_blob(answers.data(), {size(), 2}, at::kLong);
  std::vector<at::Tensor> rows;
  for (int i = 0; i < size(); ++i) rows.push_back(all.select(0, i));
  all_gather(rows, at::from_blob(mine, {2}, at::kLong)).wait();
  if (color < 0) return {};
  std::vector<std::int64_t> members;
  for (std::size_t i = 0; i < n; ++i) {
    if (answers[2 * i] == color) members.push_back(static_cast<std::int64_t>(i));
  }
  std::stable_sort(members.begin(), members.end(),
                   [&](auto a, auto b) { return answers[2 * a + 1] < answers[2 * b + 1]; });
  return subgroup(members);
}

Communicator Communicator::subgroup(at::IntArrayRef members, std::string label) const {
  std::vector<std::int64_t> sorted = members.vec();
  std::sort(sorted.begin(), sorted.end());
  TORCH_CHECK(!members.empty() && sorted.front() >= 0 && sorted.back() < size() &&
                  std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(),
              "subgroup: expected distinct ranks in [0, ", size(), "), got ", members);
  TORCH_CHECK(std::binary_search(sorted.begin(), sorted.end(), rank()), "subgroup: the calling rank ", rank(),
              " is not among the members ", members);
  auto made = backend().subgroup(members, label);
  made->set_record(backend().shared_record());
  return Communicator(std::move(made)).with_label(std::move(label));
}

}  // namespace dtensor
