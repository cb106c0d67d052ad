// Backtracking over a program of few operations, with a stack of its own: no text is too long for it.
#include "tokenizer/regex.h"

#include <algorithm>

#include "tokenizer/unicode.h"

namespace tokenizer {

bool CharacterSet::has(std::uint32_t code) const {
  const std::uint32_t bit = category_bit(code);
  const bool found = std::any_of(items.begin(), items.end(), [&](const Item& item) {
    const bool in = item.mask != 0 ? (item.mask & bit) != 0 : code >= item.first && code <= item.last;
    return in != item.negated;
  });
  return found != negated;
}

Regex::Regex(const std::string& pattern) {
  emit(parse_regex(pattern));
  emit(Op{Op::Kind::match});
}

std::size_t Regex::emit(Op op) {
  ops_.push_back(op);
  return ops_.size() - 1;
}

void Regex::emit(const Node& node) {
  switch (node.kind) {
    case Node::Kind::set:
      sets_.push_back(node.set);
      emit(Op{Op::Kind::set, sets_.size() - 1});
      return;
    case Node::Kind::sequence:
      for (const Node& part : node.parts) emit(part);
      return;
    case Node::Kind::alternatives:
      return emit_alternatives(node);
    case Node::Kind::repeat: {
      if (node.mode != Node::Mode::possessive) return emit_repeat(node);
      const std::size_t atomic = emit(Op{Op::Kind::atomic});
      emit_repeat(node);
      emit(Op{Op::Kind::match});
      ops_[atomic].target = ops_.size();
      return;
    }
    case Node::Kind::look_ahead: {
      const std::size_t look = emit(Op{Op::Kind::look_ahead, 0, node.negated});
      emit(node.parts.front());
      emit(Op{Op::Kind::match});
      ops_[look].target = ops_.size();
      return;
    }
    case Node::Kind::at_begin:
      emit(Op{Op::Kind::at_begin});
      return;
    case Node::Kind::at_end:
      emit(Op{Op::Kind::at_end});
      return;
  }
}

void Regex::emit_alternatives(const Node& node) {
  std::vector<std::size_t> ends;
  for (std::size_t i = 0; i + 1 < node.parts.size(); ++i) {
    const std::size_t fork = emit(Op{Op::Kind::fork});
    emit(node.parts[i]);
    ends.push_back(emit(Op{Op::Kind::jump}));
    ops_[fork].target = ops_.size();
  }
  emit(node.parts.back());
  for (const std::size_t end : ends) ops_[end].target = ops_.size();
}

// A lazy fork tries to leave first: it jumps over the jump into the body.
void Regex::emit_repeat(const Node& node) {
  const Node& body = node.parts.front();
  for (int i = 0; i < node.least; ++i) emit(body);
  if (node.most < 0) return emit_any_number(node);
  std::vector<std::size_t> leaving;
  for (int i = node.least; i < node.most; ++i) {
    const std::size_t fork = emit(Op{Op::Kind::fork});
    if (node.mode == Node::Mode::lazy) {
      leaving.push_back(emit(Op{Op::Kind::jump}));
      ops_[fork].target = ops_.size();
    } else {
      leaving.push_back(fork);
    }
    emit(body);
  }
  for (const std::size_t op : leaving) ops_[op].target = ops_.size();
}

void Regex::emit_any_number(const Node& node) {
  const std::size_t fork = emit(Op{Op::Kind::fork});
  std::size_t leaving = fork;
  if (node.mode == Node::Mode::lazy) {
    leaving = emit(Op{Op::Kind::jump});
    ops_[fork].target = ops_.size();
  }
  emit(node.parts.front());
  emit(Op{Op::Kind::jump, fork});
  ops_[leaving].target = ops_.size();
}

std::size_t Regex::run(std::size_t op, std::size_t at, const std::vector<std::uint32_t>& codes) const {
  std::vector<Way> others;  // not gone yet
  Way way{op, at};
  while (ops_[way.op].kind != Op::Kind::match) {
    if (go_on(way, others, codes)) continue;
    if (others.empty()) return kNone;
    way = others.back();
    others.pop_back();
  }
  return way.at;
}

bool Regex::go_on(Way& way, std::vector<Way>& others, const std::vector<std::uint32_t>& codes) const {
  const Op& o = ops_[way.op++];
  switch (o.kind) {
    case Op::Kind::set:
      return way.at < codes.size() && sets_[o.target].has(codes[way.at++]);
    case Op::Kind::fork:
      others.push_back({o.target, way.at});
      return true;
    case Op::Kind::jump:
      way.op = o.target;
      return true;
    case Op::Kind::look_ahead: {
      const bool found = run(way.op, way.at, codes) != kNone;
      way.op = o.target;
      return found != o.negated;
    }
    case Op::Kind::atomic:
      way = {o.target, run(way.op, way.at, codes)};
      return way.at != kNone;
    case Op::Kind::at_begin:
      return way.at == 0;
    case Op::Kind::at_end:
      return way.at == codes.size();
    case Op::Kind::match:
      break;
  }
  return true;
}

std::vector<std::pair<std::size_t, std::size_t>> Regex::find_all(std::string_view text) const {
  std::vector<std::uint32_t> codes;
  std::vector<std::size_t> begins;
  for (std::size_t at = 0; at < text.size();) {
    const Character c = character_at(text, at);
    codes.push_back(c.code), begins.push_back(at);
    at = c.end;
  }
  begins.push_back(text.size());
  std::vector<std::pair<std::size_t, std::size_t>> found;
  for (std::size_t at = 0; at < codes.size();) {
    const std::size_t end = run(0, at, codes);
    if (end == kNone || end == at) {
      ++at;
      continue;
    }
    found.emplace_back(begins[at], begins[end]);
    at = end;
  }
  return found;
}

}  // namespace tokenizer
