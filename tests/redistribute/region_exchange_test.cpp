// Exchanges of regions of several ranges. Copies from pieces to targets replace the collective.
#include "internal/region_exchange.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

namespace dtensor {
namespace {

constexpr std::int64_t kRows = 12, kColumns = 3, kMembers = 3;

using Rows = std::vector<std::int64_t>;  // ascending
using Arrival = RegionExchange::Arrival;

Region all_columns_of(const Rows& rows) {
  Segments ranges;
  for (const auto row : rows) {
    const bool adjacent = !ranges.empty() && ranges.back().offset + ranges.back().length == row;
    adjacent ? static_cast<void>(++ranges.back().length) : ranges.push_back({row, 1});
  }
  return {{ranges, {{0, kColumns}}}};
}

at::Tensor taken(const at::Tensor& full, const Rows& rows) { return full.index_select(0, at::tensor(rows, at::kLong)); }

// Collectives refuse outputs that overlap.
void expect_apart(at::TensorList targets) {
  for (std::size_t i = 0; i < targets.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const auto status = at::get_overlap_status(targets[i], targets[j]);
      RC_ASSERT(status != at::MemOverlapStatus::Full && status != at::MemOverlapStatus::Partial);
    }
  }
}

std::vector<at::Tensor> exchanged(const std::vector<Rows>& held, const std::vector<Rows>& wanted,
                                  const std::vector<at::Tensor>& locals, Arrival arrival) {
  std::vector<Region> from, to;
  for (const auto& rows : held) from.push_back(all_columns_of(rows));
  for (const auto& rows : wanted) to.push_back(all_columns_of(rows));
  std::vector<RegionExchange> members;
  for (std::size_t m = 0; m < locals.size(); ++m) {
    members.emplace_back(TransferPlan{overlaps(from[m], to), overlaps(to[m], from), from[m], to[m]}, locals[m],
                         at::zeros(to[m].sizes(), at::kLong), arrival);
  }
  for (const auto& member : members) expect_apart(member.targets());
  std::vector<at::Tensor> results;
  for (std::size_t receiver = 0; receiver < members.size(); ++receiver) {
    for (std::size_t sender = 0; sender < members.size(); ++sender) {
      members[receiver].targets()[sender].copy_(members[sender].pieces()[receiver]);
    }
    results.push_back(members[receiver].finish());
  }
  return results;
}

// The rows of each member, if each row has one owner.
std::vector<Rows> draw_owners() {
  std::vector<Rows> rows(kMembers);
  for (std::int64_t row = 0; row < kRows; ++row) rows[*rc::gen::inRange<std::size_t>(0, kMembers)].push_back(row);
  return rows;
}

std::vector<Rows> draw_subsets() {
  std::vector<Rows> rows(kMembers);
  for (auto& subset : rows) {
    for (std::int64_t row = 0; row < kRows; ++row) {
      if (*rc::gen::arbitrary<bool>()) subset.push_back(row);
    }
  }
  return rows;
}

RC_GTEST_PROP(RegionExchange, WritesTheWantedRows, ()) {
  const at::Tensor full = at::arange(kRows * kColumns).view({kRows, kColumns});
  const auto held = draw_owners(), wanted = draw_subsets();
  std::vector<at::Tensor> locals;
  for (const auto& rows : held) locals.push_back(taken(full.t().contiguous().t(), rows));
  const auto results = exchanged(held, wanted, locals, Arrival::write);
  for (std::size_t m = 0; m < kMembers; ++m) RC_ASSERT(results[m].equal(taken(full, wanted[m])));
}

// Several members may hold a row.
RC_GTEST_PROP(RegionExchange, WritesRowsThatSeveralMembersHold, ()) {
  const at::Tensor full = at::arange(kRows * kColumns).view({kRows, kColumns});
  auto held = draw_owners();
  const auto more = draw_subsets(), wanted = draw_subsets();
  std::vector<at::Tensor> locals;
  for (std::size_t m = 0; m < kMembers; ++m) {
    Rows both;
    std::set_union(held[m].begin(), held[m].end(), more[m].begin(), more[m].end(), std::back_inserter(both));
    held[m] = both;
    locals.push_back(taken(full, both));
  }
  const auto results = exchanged(held, wanted, locals, Arrival::write);
  for (std::size_t m = 0; m < kMembers; ++m) RC_ASSERT(results[m].equal(taken(full, wanted[m])));
}

RC_GTEST_PROP(RegionExchange, AddsTheSharesOfRows, ()) {
  const auto held = draw_subsets(), wanted = draw_owners();
  at::Tensor sums = at::zeros({kRows, kColumns}, at::kLong);
  std::vector<at::Tensor> locals;
  for (const auto& rows : held) {
    locals.push_back(at::arange(std::ssize(rows) * kColumns).view({-1, kColumns}) + std::ssize(locals) * 1000);
    sums.index_add_(0, at::tensor(rows, at::kLong), locals.back());
  }
  const auto results = exchanged(held, wanted, locals, Arrival::add);
  for (std::size_t m = 0; m < kMembers; ++m) RC_ASSERT(results[m].equal(taken(sums, wanted[m])));
}

}  // namespace
}  // namespace dtensor
