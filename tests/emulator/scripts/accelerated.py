"""Three steps of a loop by accelerate, gradients of two batches added up: accelerated.py"""

import torch
from accelerate import Accelerator
from torch import nn

WIDTH, BATCH = 64, 4

if __name__ == "__main__":
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.TensorDataset(torch.zeros(4096, WIDTH), torch.zeros(4096, WIDTH))
    loader = torch.utils.data.DataLoader(data, BATCH, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for number, (x, y) in enumerate(loader):
        if number == 6:
            break
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.print(
        accelerator.num_processes, accelerator.mixed_precision, accelerator.gather(loss).shape
    )
