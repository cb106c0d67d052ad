#!/usr/bin/env python3
"""PyTorch's pipelining over gloo on 2 ranks: the training step that bench_pipeline_step measures, one JSON line per schedule.
  bench_pipeline.py [--hidden 64] [--microbatches 8] [--steps 15]
`difference`: relative difference of the losses from one device."""
import argparse, copy, json, os, time
import torch, torch.nn as nn, torch.distributed as dist, torch.multiprocessing as mp
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, Schedule1F1B, ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble, ScheduleDualPipeV, ScheduleLoopedBFS
NAMES = dict(gpipe='gpipe', f1b='1f1b', il='interleaved', bfs='bfs', zbv='zbv', dpv='dualpipev')
class Block(nn.Module):
    def __init__(s,h):
        super().__init__(); s.n1=nn.LayerNorm(h); s.q=nn.Linear(h,3*h,bias=False); s.o=nn.Linear(h,h,bias=False); s.n2=nn.LayerNorm(h); s.u=nn.Linear(h,4*h,bias=False); s.d=nn.Linear(4*h,h,bias=False); s.h=h
    def forward(s,x):
        B,T,H=x.shape; q,k,v=s.q(s.n1(x)).view(B,T,3,4,H//4).permute(2,0,3,1,4)
        x=x+s.o(F.scaled_dot_product_attention(q,k,v,is_causal=True).transpose(1,2).reshape(B,T,H)); return x+s.d(F.gelu(s.u(s.n2(x))))
def build(h,L,V):
    torch.manual_seed(0)
    return nn.ModuleDict(dict(e=nn.Embedding(V,h), b=nn.ModuleList(Block(h) for _ in range(L)), n=nn.LayerNorm(h), f=nn.Linear(h,V,bias=False)))
class Part(nn.Module):
    def __init__(s,m,lo,hi,first,last):
        super().__init__(); s.e=m['e'] if first else None; s.b=nn.ModuleList(list(m['b'])[lo:hi]); s.n=m['n'] if last else None; s.f=m['f'] if last else None
    def forward(s,x):
        if s.e is not None: x=s.e(x)
        for b in s.b: x=b(x)
        return s.f(s.n(x)) if s.f is not None else x
def loss_fn(o,t): return F.cross_entropy(o.flatten(0,1).float(), t.flatten())
def run(rank,W,port,h,mb,sched,steps):
    os.environ.update(MASTER_ADDR='127.0.0.1',MASTER_PORT=str(port)); torch.set_num_threads(1)
    dist.init_process_group('gloo',rank=rank,world_size=W)
    L,V,B,T=4,512,8,16
    cls=dict(gpipe=ScheduleGPipe,f1b=Schedule1F1B,il=ScheduleInterleaved1F1B,bfs=ScheduleLoopedBFS,izb=ScheduleInterleavedZeroBubble,zbv=ScheduleZBVZeroBubble,dpv=ScheduleDualPipeV)[sched]
    m=build(h,L,V); ref=copy.deepcopy(m)
    multi = sched not in('gpipe','f1b'); S = 2*W if multi else W
    if not multi: mine=[rank]
    elif sched in('zbv','dpv'): mine=[rank, S-1-rank]
    else: mine=[rank+i*W for i in range(S//W)]
    per=L//S
    parts=[Part(m,i*per,(i+1)*per,i==0,i==S-1) for i in mine]
    st=[PipelineStage(p,i,S,torch.device('cpu')) for p,i in zip(parts,mine)]
    try:
        sc=cls(st if multi else st[0], n_microbatches=mb, loss_fn=loss_fn)
        opts=[torch.optim.AdamW(p.parameters(),lr=1e-3,foreach=True) for p in parts]
        g=torch.Generator().manual_seed(1); ts=[]; ls=[]
        for s in range(steps):
            x=torch.randint(0,V,(B,T),generator=g); t=torch.randint(0,V,(B,T),generator=g)
            dist.barrier(); t0=time.perf_counter(); losses=[]
            kw=dict(target=t,losses=losses) if (S-1) in mine else {}
            if 0 in mine: sc.step(x,**kw)
            else: sc.step(**kw)
            for o in opts: o.step(); o.zero_grad()
            dist.barrier(); ts.append(time.perf_counter()-t0)
            if (S-1) in mine: ls.append(torch.stack(losses).mean().item())
        ts=sorted(ts[3:])
        if (S-1) in mine:
            # reference
            full=Part(ref,0,L,True,True); op=torch.optim.AdamW(full.parameters(),lr=1e-3,foreach=True); g=torch.Generator().manual_seed(1); rl=[]; rt=[]
            for s in range(steps):
                x=torch.randint(0,V,(B,T),generator=g); t=torch.randint(0,V,(B,T),generator=g); t0=time.perf_counter()
                l=loss_fn(full(x),t); l.backward(); op.step(); op.zero_grad(); rt.append(time.perf_counter()-t0); rl.append(l.item())
            d=max(abs(a-b)/abs(b) for a,b in zip(ls,rl)); rt=sorted(rt[3:])
            print(json.dumps(dict(schedule=NAMES[sched], hidden=h, microbatches=mb, ms_median=1e3*ts[len(ts)//2], one_device_ms=1e3*rt[len(rt)//2], difference=d)),flush=True)
    except Exception as e:
        if rank==W-1: print(json.dumps(dict(schedule=NAMES[sched], error=f'{type(e).__name__} {str(e)[:160]}')),flush=True)
        os._exit(0)
    dist.destroy_process_group()
if __name__=='__main__':
    args = argparse.ArgumentParser()
    args.add_argument('--hidden', type=int, default=64); args.add_argument('--microbatches', type=int, default=8); args.add_argument('--steps', type=int, default=15)
    a = args.parse_args()
    for port, sched in enumerate(NAMES, 29700):
        mp.spawn(run, args=(2, port, a.hidden, a.microbatches, sched, a.steps), nprocs=2)
