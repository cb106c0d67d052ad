// The table of forms, to which each file of this folder adds its operators.
#pragma once

#include <initializer_list>
#include <string_view>
#include <unordered_map>

#include "sharding_prop/rule_book/resolve.h"

namespace dtensor {

// The rule of a call in a BitIdentical scope, given its ordinary one.
using Form = Rule (*)(const OpCall& call, const Rule& ordinary);
using FormTable = std::unordered_map<std::string_view, Form>;

inline void add_form(FormTable& table, Form form, std::initializer_list<const char*> names) {
  for (const char* name : names) table.emplace(name, form);
}

// Moves elements, or computes each exactly.
inline Rule exact_form(const OpCall&, const Rule& ordinary) { return ordinary; }

void add_image_forms(FormTable& table);
void add_index_sum_forms(FormTable& table);

}  // namespace dtensor
